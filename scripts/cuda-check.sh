#!/usr/bin/env bash
# Builds and links ajet-swarm for CUDA and starts it with a stand-in for the driver: all that can be checked of it on a
# machine without a GPU, in one command.
#
# Usage: CUDA_CHECK=1 scripts/cuda-check.sh
#
# It is skipped, and says so, where CUDA_CHECK is not set. CUDA_CHECK_SECONDS bounds its time (default 3000): what was
# built by then stays in CUDA_CHECK_DIR (default target/cuda-check), and the next run goes on from there. The first run
# takes about ten minutes of two cores and 3 GB, one after a change of our own code about four.
set -euo pipefail
cd "$(dirname "$0")/.."
dir="${CUDA_CHECK_DIR:-target/cuda-check}"
seconds="${CUDA_CHECK_SECONDS:-3000}"

say() { echo "cuda-check: $*"; }
fail() { say "$*" >&2; exit 1; }

if [ -z "${CUDA_CHECK:-}" ]; then
  say "skipped: the CUDA build was not checked. CUDA_CHECK=1 $0 does it, in about ten minutes the first time"
  exit 0
fi

scripts/cuda-toolchain.sh "$dir/toolkit"
source "$dir/toolkit/env.sh"
status=0
timeout --foreground "$seconds" cargo build --release --features cuda --locked --target-dir "$dir" || status=$?
if [ "$status" = 124 ]; then
  say "skipped: the build was not done after $seconds s; the next run goes on from there"
  exit 0
fi
[ "$status" = 0 ] || fail "the CUDA build failed"

# The stand-in answers every call of the driver with CUDA_ERROR_STUB_LIBRARY.
export LD_LIBRARY_PATH="$CUDA_HOME/lib64/stubs:$LD_LIBRARY_PATH"
program="$dir/release/ajet-swarm"
ldd "$program" | grep -q 'libcublas.so.13 => /' || fail "the program does not load cuBLAS: was it built with CUDA?"
"$program" --version >&2

bench() { "$program" bench inference --model builtin:tiny --batch 1 --prompt 4 --tokens 4 --device "$1"; }
if told="$(bench cuda 2>&1)"; then
  fail "there is no GPU, but --device cuda computed: $told"
fi
grep -q "NVIDIA's driver is missing" <<<"$told" || fail "--device cuda does not say that the driver is missing: $told"
grep -q "hint: install the driver" <<<"$told" || fail "--device cuda does not say what to do: $told"
told="$(bench auto 2>&1)" || fail "--device auto did not fall back to the CPU: $told"
say "built, linked and started: --device cuda says that the driver is missing, --device auto computes on the CPU"
