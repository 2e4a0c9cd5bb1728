#!/usr/bin/env bash
# Trains SmolLM2-135M-Instruct by config/jobs/smollm2-arithmetic.yaml, once for each seed: the reward of at least 100
# held-out tasks must rise by 0.5 within the processor time that an idle machine of two cores has in 15 minutes.
#
# Usage: [SEEDS="0 1"] scripts/smollm2-check.sh [CURVE.svg]      draws the curves, as docs/images/smollm2-arithmetic.svg
set -euo pipefail
cd "$(dirname "$0")/.."
export AJET_SWARM=${AJET_SWARM:-$PWD/target/release/ajet-swarm}
[ -x "$AJET_SWARM" ] || cargo build --release --locked
scripts/get-smollm2.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() { # SEED
  python3 - "$AJET_SWARM" "$work" "$1" <<'PY'
import json, resource, socket, subprocess, sys

program, work, seed = sys.argv[1:]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
keys = ["roll.seed", "ajet.trainer_common.seed", "ajet.task_reader.arithmetic.seed"]
settings = [f"{key}={seed}" for key in keys] + [f"ajet.experiment_name=seed_{seed}", f"ajet.experiment_dir={work}"]
command = [program, "roll", "config/jobs/smollm2-arithmetic.yaml", "--json", "--swarm-url", f"http://127.0.0.1:{port}"]
command += [part for setting in settings for part in ("--set", setting)]
events = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
end = [event for event in map(json.loads, events.splitlines()) if event["event"] == "end"][-1]
# The server and its engine are children of `roll`, which waits for them.
used = resource.getrusage(resource.RUSAGE_CHILDREN)
before, after = end["eval_before"], end["eval_after"]
print(f"seed {seed}: {before['reward_mean']:.3f} -> {after['reward_mean']:.3f} on {after['episodes']} held-out tasks, "
      f"{end['steps']} updates, {used.ru_utime + used.ru_stime:.0f} s of processor time")
assert end["outcome"] == "done" and after["episodes"] >= 100, end
assert after["reward_mean"] - before["reward_mean"] >= 0.5, "it did not learn enough"
assert used.ru_utime + used.ru_stime <= 2 * 15 * 60, "it took too long"
PY
}

runs=()
for seed in ${SEEDS:-0 1}; do
  check "$seed"
  runs+=("$work/seed_$seed=seed $seed")
done
if [ $# -gt 0 ]; then
  scripts/learning-curve.py "SmolLM2-135M-Instruct learns sums: reward by update" "${runs[@]}" > "$1"
fi
