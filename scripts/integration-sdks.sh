#!/usr/bin/env bash
# The field's SDKs against a server with the scripted model: openai (Python, Node), anthropic, langchain-openai, Vercel AI.
# Needs python3 with venv, node with npm, and the package registries; installs into a directory that it removes.
set -euo pipefail
cd "$(dirname "$0")/.."
export AJET_SWARM=${AJET_SWARM:-target/release/ajet-swarm}
[ -x "$AJET_SWARM" ] || cargo build --release --locked
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --requirement tests/integration/requirements.txt
cp tests/integration/{sdk,vercel}.mjs "$work/"
npm install --prefix "$work" --no-audit --no-fund --silent openai@6 ai@6 @ai-sdk/openai@3 zod@4
"$work/venv/bin/python" tests/integration/sdks.py "$work/runs" node "$work/sdk.mjs"
# New releases may have fields that the table does not know: told, not failed.
"$work/venv/bin/python" tests/integration/fields.py tests/fixtures/sdk_fields.txt || echo "the field list differs: see above"
