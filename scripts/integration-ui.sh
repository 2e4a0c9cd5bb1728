#!/usr/bin/env bash
# The web page: its types, its pure modules, and in headless Chromium with made-up data and beside the quickstart.
# Needs python3, node with npm and its registry, and Chromium (CHROMIUM; by apt where it is missing and this is root).
set -euo pipefail
cd "$(dirname "$0")/.."
export AJET_SWARM=${AJET_SWARM:-target/release/ajet-swarm}
[ -x "$AJET_SWARM" ] || cargo build --release --locked
export CHROMIUM=${CHROMIUM:-/usr/bin/chromium}
if [ ! -x "$CHROMIUM" ]; then
  apt-get update -qq && apt-get install -qq --yes --no-install-recommends chromium fonts-dejavu-core > /dev/null
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --prefix "$work" --no-audit --no-fund --silent playwright-core@1 typescript@5
export PLAYWRIGHT=$work/node_modules/playwright-core/index.mjs

# The vendored library has types of its own making; errors of our files count.
options=(--noEmit --allowJs --checkJs --strict --target es2023 --lib es2023,dom,dom.iterable)
options+=(--module esnext --moduleResolution bundler)
"$work/node_modules/.bin/tsc" "${options[@]}" assets/ui/main.mjs > "$work/types" || true
if grep '^assets/ui/' "$work/types" | grep -v '^assets/ui/vendor/'; then exit 1; fi

# A test that waits for what never comes is a failure, not a run without end.
node --test --test-concurrency=1 --test-timeout=400000 --test-force-exit tests/integration/ui/*.test.mjs
