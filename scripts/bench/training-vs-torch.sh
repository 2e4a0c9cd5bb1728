#!/usr/bin/env bash
# One training step of SmolLM2-135M, 8 x 256 tokens, ours and PyTorch's in turn, and their ratios.
# Needs: python3 with `pip install torch transformers gguf` (PYTHON names another interpreter).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
"$python" -c 'import torch, transformers, gguf' || { echo "skipped: pip install torch transformers gguf" >&2; exit; }
scripts/get-smollm2.sh > /dev/null
[ -n "${SKIP_BUILD:-}" ] || cargo build --release --locked
model=models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
ours() { ./target/release/ajet-swarm bench training --model "$model" --rows 8 --tokens 256 --repeats 2 --json "${@:2}" > "$out/$1.json"; }
torch() { "$python" scripts/bench/torch_training.py --model "$model" --repeats 2 "${@:2}" > "$out/$1.json" 2> "$out/err" || { cat "$out/err" >&2; exit 1; }; }
ours f32
torch torch-f32
ours bf16 --dtype bf16
torch torch-bf16 --dtype bf16
ours f32-lora --lora-rank 16
ours f32-recompute --recompute
"$python" - "$out" <<'PY'
import json, pathlib, sys
runs = {p.stem: json.loads(p.read_text()) for p in pathlib.Path(sys.argv[1]).glob("*.json")}
seconds = {name: r["rows"] * r["tokens"] / r["tokens_per_s"] for name, r in runs.items()}
for name, r in sorted(runs.items()):
    share = f", {r['arithmetic_ceiling_share']:.0%} of the f32 ceiling" if "arithmetic_ceiling_share" in r else ""
    print(f"{name:14} {seconds[name]:6.2f} s = {r['forward_s']:.2f} + {r['backward_s']:.2f} + {r['optimizer_s']:.2f}, "
          f"peak {r['peak_rss_mb']:.0f} MB{share}")
for a, b, what in [("f32", "torch-f32", 0.7), ("bf16", "torch-bf16", 0.7), ("f32-lora", "f32", 0.75), ("f32-recompute", "f32", 1.35)]:
    print(f"time {a} / {b}: {seconds[a] / seconds[b]:.2f} (aim: {what})")
peak = {name: r["peak_rss_mb"] for name, r in runs.items()}
print(f"memory f32 / torch-f32: {peak['f32'] / peak['torch-f32']:.2f} (aim: 0.6)")
fixed = runs["f32"]["state_mb"]
print(f"activations with recompute / without: {(peak['f32-recompute'] - fixed) / (peak['f32'] - fixed):.2f} (aim: 0.5)")
PY
