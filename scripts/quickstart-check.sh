#!/usr/bin/env bash
# The README's first command as a smoke run: it must learn, end with a checkpoint, and leave no process behind.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --locked
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
start=$SECONDS
./target/release/ajet-swarm roll config/jobs/quickstart.yaml --swarm-url "http://127.0.0.1:$port" --json > "$work/events.jsonl"
python3 - "$work/events.jsonl" $((SECONDS - start)) <<'PY'
import json, pathlib, sys
events = [json.loads(line) for line in open(sys.argv[1])]
end = [e for e in events if e["event"] == "end"][-1]
before, after = end["eval_before"]["reward_mean"], end["eval_after"]["reward_mean"]
print(f"quickstart: eval reward {before:.3f} -> {after:.3f} in {sys.argv[2]} s, {end['steps']} updates, {end['checkpoint']}")
assert end["outcome"] == "done", end
assert after - before >= 0.35 and after >= 0.8, "it did not learn enough"
assert (pathlib.Path(end["checkpoint"]) / "model.safetensors").exists(), "no checkpoint"
PY
if pgrep -f "ajet-swarm (start|engine).*$port" > /dev/null; then
  echo "a process is left" >&2
  exit 1
fi
