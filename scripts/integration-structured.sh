#!/usr/bin/env bash
# Typed answers of a random model by openai, anthropic, pydantic-ai and instructor: objects of 20 schemas, all valid, and the
# first ones trained. Needs python3 with venv and the package registry; installs into a directory that it removes.
# Usage: scripts/integration-structured.sh [OBJECTS, 500 by default]
set -euo pipefail
cd "$(dirname "$0")/.."
export AJET_SWARM=${AJET_SWARM:-target/release/ajet-swarm}
[ -x "$AJET_SWARM" ] || cargo build --release --locked
objects=${1:-500}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Their releases do not fit into one environment.
play() {
  python3 -m venv "$work/$1"
  "$work/$1/bin/pip" install --quiet "${@:3}"
  "$work/$1/bin/python" tests/integration/structured.py "$work/$1-runs" "$2"
}
play pydantic-ai $((objects * 3 / 5)) "openai==3.*" "anthropic==2.*" "pydantic-ai-slim[openai]==2.*"
play instructor $((objects * 2 / 5)) "instructor==1.*"
