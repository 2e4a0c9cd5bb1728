#!/usr/bin/env bash
# Coding agents, unmodified, as `command` agents of a job on the scripted model: opencode, Codex CLI, Claude Code, Qwen Code.
# Needs python3, node with npm, and the package registry; installs into a directory that it removes.
# Usage: scripts/integration-agents.sh [opencode|codex|claude|qwen ...]
set -euo pipefail
cd "$(dirname "$0")/.."
export AJET_SWARM=${AJET_SWARM:-$PWD/target/release/ajet-swarm}
[ -x "$AJET_SWARM" ] || cargo build --release --locked
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --prefix "$work" --no-audit --no-fund --silent \
  opencode-ai@1.18 @openai/codex@0.171 @anthropic-ai/claude-code@2.1 @qwen-code/qwen-code@0.15
python3 tests/integration/agents.py "$work/runs" "$work/node_modules/.bin" "$@"
