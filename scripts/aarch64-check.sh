#!/usr/bin/env bash
# The NEON kernels: compiles the crate for 64-bit Arm and runs the tests of kernels and of the forward pass under
# qemu. The compiler, Arm's standard library and qemu come from a Debian of its own, in AARCH64_DIR (default
# target/aarch64-check, about 3 GB), which the next run uses again.
#
# Usage: scripts/aarch64-check.sh [TEST_FILTER ...]     default: model::kernels inference::forward_tests
#
# Needs root, and Debian's archive as this machine's apt knows it; debootstrap by apt where it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${AARCH64_DIR:-target/aarch64-check}
suite=${AARCH64_SUITE:-testing}
[ "$(id -u)" = 0 ] || { echo "skipped: a Debian of its own needs root" >&2; exit; }
mkdir -p "$dir"
root=$(realpath "$dir")/root

# What the machine's own apt goes by: its archive, proxies, certificates and names.
settings() {
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
  rm -f "$root"/etc/apt/apt.conf.d/{docker-*,20packagekit,50appstream,*autoremove*}
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
}

if [ ! -e "$root/installed" ]; then
  command -v debootstrap > /dev/null || apt-get install -qq --yes --no-install-recommends debootstrap > /dev/null
  mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources | head -1)
  rm -rf "$root"
  # A suite's script in debootstrap differs only by its name: old releases do not know the new names.
  debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror" sid > "$dir/debootstrap.log"
  settings
  chroot "$root" dpkg --add-architecture arm64
  chroot "$root" apt-get update -qq
  chroot "$root" apt-get install -qq --yes --no-install-recommends \
    cargo rustc gcc g++ gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libstd-rust-dev:arm64 qemu-user > "$dir/apt.log"
  touch "$root/installed"
fi
settings
mkdir -p "$root/src" "$root/root/.cargo"
[ ! -e "${CARGO_HOME:-$HOME/.cargo}/config.toml" ] || cp "${CARGO_HOME:-$HOME/.cargo}/config.toml" "$root/root/.cargo/"
# Files that are gone here go there, too; what was built stays.
find "$root/src" -mindepth 1 -maxdepth 1 ! -name target -exec rm -rf {} +
git ls-files -z | tar --null --files-from - --create | tar --extract --directory "$root/src"

cat > "$root/check" <<'CHECK'
set -eu
cd /src
export HOME=/root CARGO_INCREMENTAL=0
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu"
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++
cargo test --lib --locked --target aarch64-unknown-linux-gnu -- "$@"
CHECK
[ $# -gt 0 ] || set -- model::kernels inference::forward_tests
# In a mount namespace of its own, so that nothing stays mounted.
unshare --mount bash -c 'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" bash /check "$@"' \
  "$root" "$@"
