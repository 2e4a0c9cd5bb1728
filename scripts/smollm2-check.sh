#!/usr/bin/env bash
# Trains SmolLM2-135M-Instruct for three LoRA updates and loads what was written with Python's transformers and peft.
# Needs: python3 with `pip install torch transformers peft gguf` (PYTHON names another interpreter).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
"$python" -c 'import torch, transformers, peft, gguf' || { echo "skipped: pip install torch transformers peft gguf" >&2; [ -z "${CI:-}" ]; exit; }
scripts/get-smollm2.sh
cargo build --release --locked
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
start=$SECONDS
./target/release/ajet-swarm roll config/jobs/smollm2-arithmetic.yaml --swarm-url "http://127.0.0.1:$port" --json > "$work/events.jsonl"
echo "3 updates and 2 evaluations in $((SECONDS - start)) s"
"$python" - "$work/events.jsonl" <<'PY'
import json, sys, pathlib, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
end = [json.loads(line) for line in open(sys.argv[1])][-1]
print(json.dumps(end))
checkpoint = pathlib.Path(end["checkpoint"])
print(sorted(str(p.relative_to(checkpoint)) for p in checkpoint.rglob("*") if p.is_file()))
adapter = next(checkpoint.rglob("adapter_config.json")).parent
base = pathlib.Path("models/smollm2-135m")
gguf_file = "SmolLM2-135M-Instruct.Q4_1.gguf"
model = AutoModelForCausalLM.from_pretrained(base, gguf_file=gguf_file, dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(base, gguf_file=gguf_file)
model = PeftModel.from_pretrained(model, adapter).eval()
messages = [{"role": "system", "content": "Answer with the number only."}, {"role": "user", "content": "What is 12 + 7?"}]
ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
out = model.generate(**ids, max_new_tokens=16, do_sample=False)
print("answer:", tokenizer.decode(out[0][ids["input_ids"].shape[1]:]))
PY
