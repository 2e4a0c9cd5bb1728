#!/usr/bin/env bash
# The field's SDKs against a server with the scripted model: openai (Python, Node), anthropic, langchain-openai.
# Needs python3 with venv, node with npm, and the package registries; installs into a directory that it removes.
set -euo pipefail
cd "$(dirname "$0")/.."
export AJET_SWARM=${AJET_SWARM:-target/release/ajet-swarm}
[ -x "$AJET_SWARM" ] || cargo build --release --locked
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --requirement tests/integration/requirements.txt
cp tests/integration/sdk.mjs "$work/"
npm install --prefix "$work" --no-audit --no-fund --silent openai@6
"$work/venv/bin/python" tests/integration/sdks.py "$work/runs" node "$work/sdk.mjs"
