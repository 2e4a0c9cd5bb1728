#!/usr/bin/env bash
# Everything about the GPU that a machine with one can check, in one command: parity with the CPU, the quickstart, speed
# and memory. Prints a table in Markdown, with the shares of what the card itself was measured to give.
#
# Usage: scripts/gpu-check.sh [PROGRAM]
#
# PROGRAM is a built ajet-swarm with CUDA (for example carried from a machine that ran scripts/cuda-check.sh); the parity
# tests, which are built from source, are then left out, and the script says so. Without it both are built, with the
# toolkit on the path or with scripts/cuda-toolchain.sh's. Takes about ten minutes after the build. SIZES names the
# shapes measured (default "0.5b 1.5b"; also 3b and 7b): random weights of Qwen2.5's shapes, nothing is downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."
program="${1:-}"
sizes="${SIZES:-0.5b 1.5b}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

say() { echo "gpu-check: $*" >&2; }
fail() { say "$*"; exit 1; }

command -v nvidia-smi >/dev/null || fail "there is no nvidia-smi: has this machine an NVIDIA driver?"
card="$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader | head -1)"
[ -n "$card" ] || fail "nvidia-smi lists no GPU"
say "$card"

if [ -z "$program" ]; then
  if ! command -v nvcc >/dev/null; then
    scripts/cuda-toolchain.sh
    source target/cuda/env.sh
  fi
  export CUDA_COMPUTE_CAP="${CUDA_COMPUTE_CAP:-80}"
  dir=target/cuda-check
  cargo build --release --features cuda --locked --target-dir "$dir"
  program="$dir/release/ajet-swarm"
  say "parity of CPU and GPU: f32 to 1e-3, bf16 to 2e-2"
  AJET_REQUIRE_GPU=1 cargo test --release --features cuda --locked --target-dir "$dir" --test gpu -- --nocapture
  parity="passed"
else
  parity="not run: a carried program has no tests"
fi
program="$(realpath "$program")"

say "quickstart on the GPU"
sed 's/^ajet:$/ajet:\n  engine: {device: cuda}/' config/jobs/quickstart.yaml >"$work/job.yaml"
port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
start=$SECONDS
(cd "$work" && "$program" roll job.yaml --swarm-url "http://127.0.0.1:$port" --json) >"$work/events.jsonl" \
  || fail "the quickstart failed: $(tail -n 3 "$work/events.jsonl")"
quickstart_seconds=$((SECONDS - start))

for size in $sizes; do
  model="builtin:random:scripts/shapes/qwen2.5-$size.json"
  say "Qwen2.5-$size: sampling"
  "$program" bench inference --device cuda --model "$model" --batch 1,8,64,256 --prompt 512 --tokens 128 --json \
    >"$work/inference-$size.jsonl"
  say "Qwen2.5-$size: training"
  for rank in 0 16; do
    "$program" bench training --device cuda --model "$model" --rows 32 --tokens 512 --lora-rank "$rank" --recompute --json \
      >"$work/training-$size-$rank.json" || say "Qwen2.5-$size with LoRA rank $rank was not measured"
  done
done

python3 - "$work" "$card" "$parity" "$quickstart_seconds" $sizes <<'PY'
import json, pathlib, sys

work, card, parity, seconds, *sizes = sys.argv[1:]
work = pathlib.Path(work)
events = [json.loads(line) for line in (work / "events.jsonl").open()]
end = [event for event in events if event["event"] == "end"][-1]
before, after = end["eval_before"]["reward_mean"], end["eval_after"]["reward_mean"]
assert end["outcome"] == "done" and after - before >= 0.35 and after >= 0.8, f"the quickstart did not learn: {before} -> {after}"

print(f"\n{card}\n")
print("| check | result |\n|---|---|")
print(f"| parity with the CPU | {parity} |")
print(f"| quickstart | reward {before:.2f} -> {after:.2f} in {seconds} s |")
print("\n| sampling, prompts of 512, 128 new | batch | decode tokens/s | of memory | prefill tokens/s | of arithmetic | first token ms | GPU MB |")
print("|---|--:|--:|--:|--:|--:|--:|--:|")
for size in sizes:
    for line in (work / f"inference-{size}.jsonl").open():
        m = json.loads(line)
        print(f"| Qwen2.5-{size} | {m['batch']} | {m['decode_tokens_per_s']:,.0f} | {m['memory_ceiling_share']:.0%} | "
              f"{m['prefill_tokens_per_s']:,.0f} | {m['arithmetic_ceiling_share']:.0%} | {m['ttft_ms']:.0f} | {m['gpu_mb']:,.0f} |")
print("\n| training, 32 rows of 512 | trained | forward s | backward s | optimizer s | tokens/s | of arithmetic | GPU MB |")
print("|---|---|--:|--:|--:|--:|--:|--:|")
for size in sizes:
    for rank, what in [(0, "all"), (16, "LoRA, rank 16")]:
        text = (work / f"training-{size}-{rank}.json").read_text()
        if not text:
            print(f"| Qwen2.5-{size} | {what} | not measured | | | | | |")
            continue
        m = json.loads(text)
        print(f"| Qwen2.5-{size} | {what} | {m['forward_s']:.2f} | {m['backward_s']:.2f} | {m['optimizer_s']:.2f} | "
              f"{m['tokens_per_s']:,.0f} | {m['arithmetic_ceiling_share']:.0%} | {m['gpu_mb']:,.0f} |")
PY
