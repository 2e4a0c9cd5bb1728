#!/usr/bin/env bash
# Takes a release build through the swarm protocol with the Python client of tests/python, in a virtual environment of
# its own.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -n "${SKIP_BUILD:-}" ] || cargo build --release --locked
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "httpx>=0.27,<1"
"$work/venv/bin/python" tests/python/run_protocol.py target/release/ajet-swarm
