#!/usr/bin/env bash
# A whole GRPO step of SmolLM2-135M (4 tasks x 8 answers, 64-token prompts, 64 new tokens, all parameters), ours and TRL's
# in turn. Ours are whole steps through HTTP: server, clients, sampling, update, and the next batch begun.
# Needs: python3 with `pip install torch transformers gguf trl` (PYTHON names another interpreter).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
"$python" -c 'import torch, transformers, gguf, trl' || { echo "skipped: pip install torch transformers gguf trl" >&2; exit; }
scripts/get-smollm2.sh > /dev/null
[ -n "${SKIP_BUILD:-}" ] || cargo build --release --locked
model=models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
bench() { ./target/release/ajet-swarm bench "${@:2}" --model "$model" --json > "$out/$1.json"; }
step=(step --tasks 4 --repeats 8 --prompt 64 --tokens 64)
long=(training --rows 32 --tokens 576 --prompt 512 --group 8 --repeats 1 --micro-batch-tokens 4608)
MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456 \
  "$python" scripts/bench/trl_grpo.py --model "$model" 2> "$out/err" | tail -1 > "$out/trl.json" || { cat "$out/err" >&2; exit 1; }
bench "f32" "${step[@]}"
bench "f32, half of the groups without signal" "${step[@]}" --signal 0.5
bench "f32 with KL" "${step[@]}" --set ajet.trainer_common.use_kl_loss=true
bench "bf16" "${step[@]}" --set ajet.engine.dtype=bf16
bench long "${long[@]}"
bench long-apart "${long[@]}" --no-sharing
"$python" - "$out" <<'PY'
import json, pathlib, sys
runs = {p.stem: json.loads(p.read_text().strip().splitlines()[-1]) for p in pathlib.Path(sys.argv[1]).glob("*.json")}
def update(name): r = runs[name]; return r["scoring_s"] + r["forward_s"] + r["backward_s"] + r["optimizer_s"]
trl = runs["trl"]
print(f"TRL: {trl['step_s']:.2f} s, of which generation {trl['generation_s']:.2f} s, peak {trl['peak_rss_mb']:.0f} MB")
for name, run in runs.items():
    if "sampling_s" in run:
        print(f"ours, {name}: {run['step_s']:.2f} s, {run['step_s'] / trl['step_s']:.2f} of TRL's f32"
              f" (sampling {run['sampling_s']:.2f}, update {run['update_s']:.2f}, rest {run['rest_s']:.2f})")
print(f"peak memory {runs['f32']['peak_memory_mb'] / trl['peak_rss_mb']:.2f} of TRL's")
print(f"512-token prompts: update {update('long'):.2f} s, without sharing {update('long-apart'):.2f} s, ratio {update('long') / update('long-apart'):.2f}")
PY
