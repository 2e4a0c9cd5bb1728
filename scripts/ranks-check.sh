#!/usr/bin/env bash
# An engine of several ranks, with the real mpirun: the quickstart's updates by one and by two ranks are equal, a run with
# two ranks learns as one alone does, killed ranks lose nothing, and a checkpoint of four ranks resumes with two and one.
#
#   scripts/ranks-check.sh [PROGRAM]    default: builds target/release/ajet-swarm with --features mpi
#
# Installs nothing; needs Open MPI (Debian: libopenmpi-dev openmpi-bin) and, to build, libclang (libclang-dev).
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then
  cargo build --release --locked --features mpi
fi
exec python3 scripts/ranks_check.py "$(realpath "${1:-target/release/ajet-swarm}")"
