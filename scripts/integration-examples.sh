#!/usr/bin/env bash
# The examples that need Python packages, for one update on the built-in model: reasoning-gym, and the black box with
# `openai`. Needs python3 and the package registry; installs into a directory that it removes.
# Usage: scripts/integration-examples.sh
set -euo pipefail
cd "$(dirname "$0")/.."
program=${AJET_SWARM:-$PWD/target/release/ajet-swarm}
[ -x "$program" ] || cargo build --release --locked
work=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'openai==3.*' 'reasoning-gym==0.1.*'
export PATH="$work/venv/bin:$PATH" MODEL=builtin:tiny
(cd "$work" && exec "$program" start --swarm-port 0 > banner.txt 2> server.log) &
server=$!
until port=$(sed -n 's/.*listening on .* port \([0-9]*\).*/\1/p' "$work/banner.txt" 2>/dev/null) && [ -n "$port" ]; do sleep 0.2; done

# Of one update with small batches; the tiny model's answers are equally wrong, of which nothing is learned.
update() {
  local example=$1
  shift
  (cd "examples/$example" && "$program" roll job.yaml --json --swarm-url "http://127.0.0.1:$port" --stop-engine-at-end \
    --set roll.steps=1 --set roll.eval=null --set ajet.data.train_batch_size=2 --set ajet.rollout.num_repeat=2 \
    --set ajet.data.max_prompt_length=400 "$@" > "$work/$example.jsonl" 2> "$work/$example.log") || true
  if grep -q '"event":"step"' "$work/$example.jsonl" && ! grep -q '"dropped":"' "$work/$example.jsonl"; then
    echo "ok: $example $*"
  else
    cat "$work/$example.jsonl" "$work/$example.log"
    exit 1
  fi
}

update reasoning-gym --set roll.agent.workers=2
update python-black-box --set 'roll.agent.argv=[python3, agent_openai.py]'
