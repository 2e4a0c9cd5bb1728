"""Asks ten questions of everything that loads what `scripts/export-check.sh` trained, and compares the greedy answers.

Usage: check_answers.py AJET_SWARM WORK GGUF. WORK has the checkpoints `whole` and `adapted`, and the exports `base`,
`adapter` and `merged` with `base.gguf` and `merged.gguf`, converted by llama.cpp, and `laptop/fetched`, which a client
fetched; GGUF is the model that was trained.
"""

import json
import pathlib
import re
import subprocess
import sys
import urllib.request

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

program, work, gguf = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
torch.set_num_threads(1)  # several wait for one another on a busy machine
MOST = 24
QUESTIONS = [
    "What is 12 + 7?",
    "What is the capital of France?",
    "Reverse the word: house",
    "Ana has 3 boxes with 4 pens each. How many pens has she?",
    "Name three animals.",
    "Say hello in Spanish.",
    "Which is larger, 9 or 11?",
    "Write a line of Python that prints 5.",
    "Über wen schrieb Goethe den Faust?",
    "Complete: the sky is",
]


def conversation(question):
    return [{"role": "user", "content": question}]


def transformers_answers(model, tokenizer):
    answers = []
    for question in QUESTIONS:
        ids = tokenizer.apply_chat_template(
            conversation(question), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            sampled = model.generate(**ids, max_new_tokens=MOST, do_sample=False)[0, ids["input_ids"].shape[1] :]
        answers.append(tokenizer.decode(sampled, skip_special_tokens=True))
    return answers


def llama_cpp_answers(model, tokenizer):
    prompts = []
    for question in QUESTIONS:
        text = tokenizer.apply_chat_template(conversation(question), add_generation_prompt=True, tokenize=False)
        prompts.append({"text": text, "tokens": tokenizer(text, add_special_tokens=False)["input_ids"]})
    script = pathlib.Path(__file__).with_name("llama_cpp.mjs")
    command = ["node", script, work / model, str(MOST)]
    return json.loads(subprocess.run(command, input=json.dumps(prompts), text=True, check=True, stdout=subprocess.PIPE).stdout)


def chat_answers(model):
    command = [program, "chat", model, "--temperature", "0", "--max-tokens", str(MOST)]
    return [
        subprocess.run(command, input=question + "\n", text=True, check=True, stdout=subprocess.PIPE).stdout
        for question in QUESTIONS
    ]


def serve_answers(model):
    server = subprocess.Popen([program, "serve", model, "--port", "0"], text=True, stdout=subprocess.PIPE)
    try:
        url = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+/v1", line)))
        answers = []
        for question in QUESTIONS:
            body = {"messages": conversation(question), "temperature": 0, "max_tokens": MOST}
            request = urllib.request.Request(
                url + "/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request) as response:
                answers.append(json.load(response)["choices"][0]["message"]["content"])
        return answers
    finally:
        server.terminate()
        server.wait()


def compare(what, by_program):
    (first, expected), *others = by_program.items()
    expected = [answer.strip() for answer in expected]
    for name, answers in others:
        for question, a, b in zip(QUESTIONS, expected, answers, strict=True):
            assert a == b.strip(), f"{what}: {question!r} is answered {a!r} by {first} and {b!r} by {name}"
    print(f"{what}: {', '.join(by_program)} give the same {len(expected)} answers, such as {expected[0]!r}")
    return expected


def load(path, **options):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options).eval()


checkpoints = work / "saved_experiments"
tokenizer = AutoTokenizer.from_pretrained(work / "base")
whole = compare("all weights trained", {
    "transformers on the export": transformers_answers(load(work / "base"), tokenizer),
    "llama.cpp on the export": llama_cpp_answers("base.gguf", tokenizer),
    "chat on the checkpoint": chat_answers(checkpoints / "whole"),
    "chat on the export": chat_answers(work / "base"),
    "serve on the checkpoint": serve_answers(checkpoints / "whole"),
})

base = load(gguf.parent, gguf_file=gguf.name)
untrained = transformers_answers(base, tokenizer)
adapted = compare("an adapter trained", {
    "peft on the adapter": transformers_answers(PeftModel.from_pretrained(base, work / "adapter").eval(), tokenizer),
    "peft on the fetched adapter": transformers_answers(
        PeftModel.from_pretrained(load(gguf.parent, gguf_file=gguf.name), work / "laptop/fetched").eval(), tokenizer
    ),
    "transformers on the merged export": transformers_answers(load(work / "merged"), tokenizer),
    "llama.cpp on the merged export": llama_cpp_answers("merged.gguf", tokenizer),
    "chat on the checkpoint": chat_answers(checkpoints / "adapted"),
    "chat on the fetched adapter": chat_answers(work / "laptop/fetched"),
    "chat on the adapter": chat_answers(work / "adapter"),
    "chat on the merged export": chat_answers(work / "merged"),
    "serve on the checkpoint": serve_answers(checkpoints / "adapted"),
    "serve on the adapter": serve_answers(work / "adapter"),
    "serve on the merged export": serve_answers(work / "merged"),
})
for what, answers in [("all weights", whole), ("an adapter", adapted)]:
    assert answers != [answer.strip() for answer in untrained], f"training {what} changed no answer: the comparison says little"
