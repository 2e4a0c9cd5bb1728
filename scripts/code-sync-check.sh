#!/usr/bin/env bash
# Training code from end to end, with the real cargo: a changed advantage is synced and trained with, then reverted; a
# plan compares it as a patch; a syntax error, a panic at boot and another contract version leave the engine OFFLINE with
# the reason. The advantages of every update are compared with those computed here from the trajectories' rewards.
#
#   scripts/code-sync-check.sh [PROGRAM]    default: target/release/ajet-swarm
#   ALL=1                                   also the panic and the contract version, two more builds
#   CODE_ROOT=DIR                           keeps snapshots and the build cache in DIR
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${1:-target/release/ajet-swarm}")
work=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || kill "$server" 2> /dev/null || true
  [ -z "$server" ] || wait "$server" 2> /dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# The laptop's checkout, in a folder `ajet/` as the Python client wants it.
mkdir -p "$work/laptop/ajet" "$work/box"
git ls-files -z | tar --null -T - -c | tar x -C "$work/laptop/ajet"
git -C "$work/laptop" init -q
git -C "$work/laptop" add .
sums() { { sha256sum "$program"; git ls-files -z | xargs -0 sha256sum; } | sha256sum; }
before=$(sums)

[ -z "${CODE_ROOT:-}" ] || { mkdir -p "$CODE_ROOT"; ln -s "$(realpath "$CODE_ROOT")" "$work/box/synced_code"; }
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export AJET_SWARM_URL=http://127.0.0.1:$port
(cd "$work/box" && exec "$program" -v start --swarm-port "$port" --allow-code-sync > "$work/server.log" 2>&1) &
server=$!
for _ in $(seq 100); do "$program" status > /dev/null 2>&1 && break; sleep 0.1; done

code=$work/laptop/ajet
estimate=$code/src/train/advantage/estimate.rs
sync() { "$program" sync-code "$@" "$work/laptop"; }
# NAME: five updates of a new experiment.
train() {
  local from=$SECONDS
  "$program" roll config/jobs/quickstart.yaml --json --set "ajet.experiment_name=$1" --set roll.steps=5 \
    --set roll.eval=null --set ajet.data.train_batch_size=8 --set ajet.trainer_common.total_training_steps=9 \
    --set ajet.trainer_common.save_trajectory_as_json_file=true > "$work/$1.jsonl" || return 1
  echo "$1: built and trained in $((SECONDS - from)) s"
}
# NAME FACTOR: the advantages of each update are FACTOR times (reward - mean) / (std + 1e-6).
compare() {
  python3 - "$work/box/saved_experiments" "$1" "$2" <<'PY'
import collections, json, pathlib, statistics, sys
root, name, factor = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
[experiment] = [path.parent for path in root.rglob("metrics.jsonl") if name in str(path)]
compared = 0
for step in range(1, 6):
    files = experiment / "trajectories/train" / f"step_{step}"
    told = json.loads((files / "advantages.json").read_text())
    episodes = [json.loads(file.read_text())["summary"] for file in files.glob("*.json") if file.stem != "advantages"]
    groups = collections.defaultdict(list)
    for episode in episodes:
        groups[episode["task_id"]].append(episode["reward"])
    for episode in episodes:
        rewards, [advantage] = groups[episode["task_id"]], told[episode["episode_uuid"]]
        equal = max(rewards) == min(rewards)
        mean, std = statistics.mean(rewards), 0.0 if equal else statistics.stdev(rewards)
        expected = 0.0 if equal else factor * (episode["reward"] - mean) / (std + 1e-6)
        assert abs(advantage - expected) < 1e-4, f"{name} step {step}: {advantage}, by hand {expected}"
        compared += expected != 0
assert compared, "no update had a signal"
print(f"{name}: {compared} advantages other than 0 equal those computed by hand (factor {factor})")
PY
}
# WORDS: the engine is OFFLINE, and its detail has these words.
offline_with() {
  local detail
  detail=$("$program" status --wait offline --timeout 120 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["status"]["engine_status_detail"])')
  [[ $detail == *"$1"* ]] || { echo "detail without $1: $detail" >&2; exit 1; }
  echo "OFFLINE: $detail"
}
# NAME WORDS: the engine of the synced code does not come up.
fails() {
  if train "$1" 2> "$work/$1.err"; then echo "$1 should not train" >&2; exit 1; fi
  offline_with "$2"
}

# DIR: what AgentJet's Python client does in this directory; prints the status and the answer.
python_sync() {
  (cd "$1" && python3 - "$AJET_SWARM_URL" <<'PY'
import io, subprocess, sys, urllib.error, urllib.request, zipfile
files = subprocess.run(["git", "ls-files", "--", "ajet"], check=True, capture_output=True, text=True).stdout.split("\n")
archive = io.BytesIO()
with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zip:
    for file in filter(None, files):
        zip.write(file, file)
url = sys.argv[1] + "/sync_train_code"
request = urllib.request.Request(url, archive.getvalue(), {"Content-Type": "application/zip"})
try:
    with urllib.request.urlopen(request) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
PY
  )
}

from=$SECONDS
python_sync "$work/laptop" | grep -q '^200 .*"success":true'
git init -q "$work/elsewhere"
python_sync "$work/elsewhere" | grep '^400 .*contains no files'
"$program" sync-code --built-in
train builtin
compare builtin 1

sed -i 's|(r - group.mean) / if by_std|2.0 * (r - group.mean) / if by_std|' "$estimate"
git -C "$work/laptop" diff --stat | cat
sync
train doubled
compare doubled 2
grep -q 'Using synced training code from .*/ajet' "$work/server.log"

git -C "$work/laptop" checkout -q ajet/src/train/advantage/estimate.rs
sync
train reverted
compare reverted 1

sed -i 's|(r - group.mean) / if by_std|forgotten * (r - group.mean) / if by_std|' "$estimate"
sync
fails broken 'cannot find value `forgotten`'
"$program" sync-code --build-log | grep -q 'error\[E0'
git -C "$work/laptop" checkout -q ajet/src/train/advantage/estimate.rs

if [ -n "${ALL:-}" ]; then
  sed -i 's|^    let hub = app.hub.clone();|&\n    if std::env::args().count() > 0 { panic!("no boot today"); }|' "$code/src/engine/boot.rs"
  sync
  fails panics 'no boot today'
  git -C "$work/laptop" checkout -q ajet/src/engine/boot.rs
  sed -i 's|\(CONTRACT_VERSION: u32 = \)[0-9]*|\14711|' "$code/src/protocol/engine.rs"
  sync
  fails contract 'version 4711 of the engine contract'
  git -C "$work/laptop" checkout -q ajet/src/protocol/engine.rs
fi

echo 'pub mod forgotten;' > "$code/src/train/forgotten.rs"
sync --dry-run 2>&1 | grep -q 'warning: src/train/forgotten.rs is not sent'
git -C "$work/laptop" add ajet/src/train/forgotten.rs
sync --dry-run 2> /dev/null | grep -qx 'ajet/src/train/forgotten.rs'
git -C "$work/laptop" rm -qf ajet/src/train/forgotten.rs

sync
train again
compare again 1

# A plan whose variants differ in the code alone.
sed -i 's|(r - group.mean) / if by_std|2.0 * (r - group.mean) / if by_std|' "$estimate"
git -C "$code" diff --relative > "$work/doubled.patch"
git -C "$work/laptop" checkout -q ajet/src/train/advantage/estimate.rs
cat > "$work/plan.yaml" <<PLAN
job: $PWD/config/jobs/quickstart.yaml
steps: 4
last: 4
seeds: [1, 2]
metric: advantage_std
servers: ["$AJET_SWARM_URL"]
code: laptop
variants:
  - {name: baseline, set: {roll.eval: null}}
  - {name: doubled, set: {roll.eval: null}, patch: doubled.patch}
PLAN
"$program" research "$work/plan.yaml" > "$work/research.log" 2>&1 || { cat "$work/research.log" >&2; exit 1; }
python3 - "$work/plan.research/report.json" <<'PY'
import json, sys
report = json.load(open(sys.argv[1]))
baseline, doubled = report["variants"]
assert report["runs"] == [4, 4] and doubled["verdict"] == "better", report
assert 1.8 < doubled["mean"] / baseline["mean"] < 2.2, report
print("research:", report["conclusions"][0])
PY
[ "$before" = "$(sums)" ] || { echo "the server's program or checkout changed" >&2; exit 1; }
grep -o 'built the synced training code in .*' "$work/server.log"
echo "code sync: all as it should be, in $((SECONDS - from)) s; program and checkout are byte-equal"
