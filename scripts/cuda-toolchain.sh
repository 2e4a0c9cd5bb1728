#!/usr/bin/env bash
# A CUDA toolkit for building ajet-swarm with `--features cuda`, on a machine that needs neither a GPU nor NVIDIA's
# installer: the compiler, headers and libraries come from PyPI's wheels.
#
# Usage: scripts/cuda-toolchain.sh [DIR]           DIR: where to (default target/cuda)
#        source target/cuda/env.sh && cargo build --release --features cuda
#
# DIR/lib64/stubs/libcuda.so.1 stands in for the driver at link time, as in NVIDIA's own toolkit: it names every symbol
# and answers each call with CUDA_ERROR_STUB_LIBRARY. env.sh does not put it in the way of a real driver.
# PYTHON names the interpreter (default python3); pip 20.3 or newer. About 1.2 GB.
set -euo pipefail
cd "$(dirname "$0")/.."

version=13.0
parts="nvcc,cudart,crt,cccl,curand,cublas,nvrtc,nvvm"
mkdir -p "${1:-target/cuda}"
home="$(cd "${1:-target/cuda}" && pwd)"

say() { echo "cuda-toolchain: $*" >&2; }

# The wheels put everything under nvidia/cu13, laid out as nvcc expects, but for lib64 and the names to link by.
toolkit() {
  if [ -x "$home/bin/nvcc" ]; then
    say "the toolkit is in $home already"
    return
  fi
  say "fetching CUDA $version's wheels"
  rm -rf "$home/wheels"
  "${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --target "$home/wheels" \
    "cuda-toolkit[$parts]==$version.*"
  mv "$home/wheels/nvidia/cu${version%.*}/"* "$home/"
  rm -rf "$home/wheels"
  ln -sfn lib "$home/lib64"
  for library in "$home"/lib/*.so.*; do
    name="$(basename "$library")"
    ln -sfn "$name" "$home/lib/${name%%.so.*}.so"
  done
}

# The driver's interface as the linker sees it. The list of its symbols is the one in the crate that calls them.
stub() {
  local bindings symbols
  bindings="$(cargo metadata --format-version 1 --locked --features cuda \
    | "${PYTHON:-python3}" -c 'import json, pathlib, sys
for package in json.load(sys.stdin)["packages"]:
    if package["name"] == "cudarc":
        print(pathlib.Path(package["manifest_path"]).parent / "src/driver/sys/mod.rs")')"
  symbols="$(sed -n 's/^pub unsafe fn \(cu[A-Za-z0-9_]*\).*/\1/p' "$bindings" | sort -u)"
  mkdir -p "$home/lib/stubs"
  {
    echo '/* Every call fails with CUDA_ERROR_STUB_LIBRARY; these two describe it. */'
    echo 'enum { CUDA_ERROR_STUB_LIBRARY = 34 };'
    echo 'int cuGetErrorName(int error, const char **name) { *name = "CUDA_ERROR_STUB_LIBRARY"; return 0; }'
    echo 'int cuGetErrorString(int error, const char **text) { *text = "CUDA driver is a stub library"; return 0; }'
    for symbol in $symbols; do
      case $symbol in
        cuGetErrorName | cuGetErrorString) ;;
        *) echo "int $symbol(void) { return CUDA_ERROR_STUB_LIBRARY; }" ;;
      esac
    done
  } >"$home/lib/stubs/libcuda.c"
  "${CC:-gcc}" -shared -fPIC -O1 -Wl,-soname,libcuda.so.1 -o "$home/lib/stubs/libcuda.so.1" "$home/lib/stubs/libcuda.c"
  ln -sfn libcuda.so.1 "$home/lib/stubs/libcuda.so"
  say "$(wc -w <<<"$symbols") driver symbols in $home/lib64/stubs/libcuda.so.1"
}

# CUDA_COMPUTE_CAP is the oldest card that the kernels run on: 80 is Ampere, the first with bf16. They are PTX, which
# the driver translates for newer cards when they are first used.
environment() {
  cat >"$home/env.sh" <<END
export CUDA_HOME="$home"
export PATH="\$CUDA_HOME/bin:\$PATH"
export LD_LIBRARY_PATH="\$CUDA_HOME/lib64\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
export CUDA_COMPUTE_CAP="\${CUDA_COMPUTE_CAP:-80}"
END
}

toolkit
stub
environment
say "$("$home/bin/nvcc" --version | sed -n 's/^Cuda compilation tools, //p')"
say "next: source $home/env.sh && cargo build --release --features cuda"
