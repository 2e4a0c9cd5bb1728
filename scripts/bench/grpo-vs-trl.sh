#!/usr/bin/env bash
# A whole GRPO step of SmolLM2-135M (4 tasks x 8 answers, 64-token prompts, 64 new tokens, all parameters), ours and TRL's
# in turn. Ours is the sampling and the update, measured one after the other.
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
step=(training --rows 32 --tokens 128 --prompt 64 --group 8 --repeats 2)
long=(training --rows 32 --tokens 576 --prompt 512 --group 8 --repeats 1 --micro-batch-tokens 4608)
MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456 \
  "$python" scripts/bench/trl_grpo.py --model "$model" 2> "$out/err" | tail -1 > "$out/trl.json" || { cat "$out/err" >&2; exit 1; }
sampling=(inference --batch 32 --group 8 --prompt 64 --tokens 64)
bench sampling "${sampling[@]}"
bench sampling-bf16 "${sampling[@]}" --bf16
bench update "${step[@]}"
bench update-bf16 "${step[@]}" --dtype bf16
bench update-kl "${step[@]}" --kl
bench long "${long[@]}"
bench long-apart "${long[@]}" --no-sharing
"$python" - "$out" <<'PY'
import json, pathlib, sys
runs = {p.stem: json.loads(p.read_text().strip().splitlines()[-1]) for p in pathlib.Path(sys.argv[1]).glob("*.json")}
def update(name): r = runs[name]; return r["scoring_s"] + r["forward_s"] + r["backward_s"] + r["optimizer_s"]
def sampling(name): r = runs[name]; return 32 * 64 / r["prefill_tokens_per_s"] + 32 * 63 / r["decode_tokens_per_s"]
trl = runs["trl"]
steps = {"f32": sampling("sampling") + update("update"), "bf16": sampling("sampling-bf16") + update("update-bf16"),
         "f32 with KL": sampling("sampling") + update("update-kl")}
print(f"TRL: {trl['step_s']:.2f} s, of which generation {trl['generation_s']:.2f} s, peak {trl['peak_rss_mb']:.0f} MB")
for name, seconds in steps.items():
    print(f"ours {name}: {seconds:.2f} s, {seconds / trl['step_s']:.2f} of TRL's f32")
print(f"update alone: {update('update'):.2f} s, peak {runs['update']['peak_rss_mb']:.0f} MB")
print(f"peak memory {runs['update']['peak_rss_mb'] / trl['peak_rss_mb']:.2f} of TRL's (aim: 0.65)")
print(f"KL adds {steps['f32 with KL'] / steps['f32'] - 1:.0%}")
print(f"512-token prompts: update {update('long'):.2f} s, without sharing {update('long-apart'):.2f} s, ratio {update('long') / update('long-apart'):.2f}")
PY
