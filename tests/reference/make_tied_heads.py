"""Makes tests/fixtures/tied_heads.safetensors: what `transformers` computes where `tie_word_embeddings` and the tensors
in the files do or do not agree.

    pip install torch transformers
    python tests/reference/make_tied_heads.py

`head` is a head that differs from every model's embedding, `input_ids` a prompt. `MODEL/TIED/STORED` are the logits after
its last token of tests/fixtures/models/MODEL with `tie_word_embeddings` TIED (`true`, `false` or `absent`), whose files
hold the embedding and that head (`differ`), the embedding twice (`equal`), the embedding alone (`embedding`) or the head
alone (`head`). A case is left out where `transformers` makes up the missing tensor at random.
"""

import json
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def rewrite(directory, tied, stored, head):
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.pop("tie_word_embeddings", None)
    if tied != "absent":
        config["tie_word_embeddings"] = tied == "true"
    path.write_text(json.dumps(config))
    files = {path: load_file(path) for path in sorted(directory.glob("model*.safetensors"))}
    embedding = next(tensors[EMBEDDING] for tensors in files.values() if EMBEDDING in tensors)
    for tensors in files.values():
        tensors.pop(HEAD, None)
        if stored == "head":
            tensors.pop(EMBEDDING, None)
    if stored != "embedding":
        list(files.values())[-1][HEAD] = embedding.clone() if stored == "equal" else head
    for path, tensors in files.items():
        save_file(tensors, path, metadata={"format": "pt"})
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = {name: path.name for path, tensors in files.items() for name in tensors}
        index.write_text(json.dumps({"metadata": {}, "weight_map": names}))


def main():
    head = 0.5 * torch.randn((96, 32), generator=torch.Generator().manual_seed(5))
    ids = torch.arange(3, 30)
    fixtures = {"head": head, "input_ids": ids}
    for name in ["llama", "llama-sharded", "qwen2", "qwen3"]:
        for tied in ["true", "false", "absent"]:
            for stored in ["differ", "equal", "embedding", "head"]:
                with tempfile.TemporaryDirectory() as directory:
                    directory = pathlib.Path(directory) / name
                    shutil.copytree(FIXTURES / "models" / name, directory)
                    rewrite(directory, tied, stored, head)
                    model, info = AutoModelForCausalLM.from_pretrained(
                        directory, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
                    )
                    if info["missing_keys"]:
                        print(f"{name}/{tied}/{stored}: made up {sorted(info['missing_keys'])}")
                        continue
                    with torch.no_grad():
                        logits = model.eval()(ids[None]).logits[0, -1]
                    fixtures[f"{name}/{tied}/{stored}"] = logits.contiguous()
    save_file(fixtures, FIXTURES / "tied_heads.safetensors")
    print(f"{len(fixtures) - 2} cases")


if __name__ == "__main__":
    main()
