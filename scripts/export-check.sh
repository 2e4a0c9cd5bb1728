#!/usr/bin/env bash
# Trains the built-in model for two updates, whole and as LoRA, exports both, and opens what was written with Python's
# transformers, peft and tensorboard. Needs: python3 with `pip install torch transformers peft tensorboard` (PYTHON
# names another interpreter).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
"$python" -c 'import torch, transformers, peft, tensorboard' || { echo "skipped: pip install torch transformers peft tensorboard" >&2; [ -z "${CI:-}" ]; exit; }
cargo build --release --locked
ajet=$PWD/target/release/ajet-swarm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

train() { # NAME MODEL LORA
  cat > "$1.yaml" <<YAML
ajet:
  experiment_name: $1
  model: { path: "$2" }
  data: { train_batch_size: 4, max_prompt_length: 64, max_response_length: 32 }
  rollout: { num_repeat: 8 }
  trainer_common: { optim: { lr: 1.0e-3 }, save_freq: 1, logger: [tensorboard], save_trajectory_as_json_file: true }
  lora: $3
  task_reader: { type: reverse_text, reverse_text: { tasks: 50, validation_tasks: 4 } }
roll:
  steps: 2
  agent: { type: chat, user: "{{ main_query }}" }
  reward: { type: exact_match, answer: "{{ metadata.answer }}" }
YAML
  local port
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  "$ajet" roll "$1.yaml" --swarm-url "http://127.0.0.1:$port" --json > "$1.jsonl"
}

train whole builtin:tiny '{}'
"$ajet" export --from saved_experiments/whole --to base
"$ajet" export --from saved_experiments/whole --to base16 --dtype bf16
train adapted "$work/base" '{ lora_rank: 4, lora_alpha: 8 }'
"$ajet" export --from saved_experiments/adapted --to adapter
"$ajet" export --from saved_experiments/adapted/checkpoints/global_step_2 --to merged --merge-lora
"$python" "$OLDPWD/tests/reference/check_export.py" "$work"
