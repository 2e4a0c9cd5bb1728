#!/usr/bin/env python3
"""One GRPO step of TRL's GRPOTrainer: 4 tasks x 8 answers, 64-token prompts, 64 new tokens, all parameters.

Prints an object: seconds of the fastest step after the first, of which generation, and the peak memory. Best settings
found on two cores: micro-batches of 8, and glibc's malloc told to keep large blocks
(MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456).
"""
import argparse
import json
import random
import resource
import tempfile
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a Hugging Face directory, or DIR/FILE.gguf")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--kl", type=float, default=0.0, help="coefficient of the KL term")
    parser.add_argument("--bf16", action="store_true", help="autocast to bf16")
    return parser.parse_args()


class Clock(TrainerCallback):
    """Seconds of each step."""

    def __init__(self):
        self.steps = []

    def on_step_begin(self, *_, **__):
        self.start = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.steps.append(time.perf_counter() - self.start)


def main():
    args = arguments()
    directory, _, file = args.model.rpartition("/")
    where = {"pretrained_model_name_or_path": directory, "gguf_file": file}
    if not file.endswith(".gguf"):
        where = {"pretrained_model_name_or_path": args.model}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    model.is_quantized = False  # a GGUF file's weights were widened to f32 while they were read
    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    random.seed(0)
    words = [w for i in range(2000, 8000) if (w := tokenizer.decode([i])).startswith(" ") and w[1:].isalpha()]

    def prompt():
        text = ""
        while len(tokenizer(text)["input_ids"]) < args.prompt:
            text += random.choice(words)
        return text

    batch = args.tasks * args.answers
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=args.bf16,
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=batch // args.micro_batch,
        num_generations=args.answers,
        max_completion_length=args.tokens,
        generation_kwargs={"min_new_tokens": args.tokens},
        beta=args.kl,
        learning_rate=1e-6,
        max_steps=args.steps + 1,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1000,
        disable_tqdm=True,
    )
    clock, generation = Clock(), []
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [random.random() for _ in completions],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt()} for _ in range(args.tasks * (args.steps + 1))]),
        callbacks=[clock],
    )
    generate = trainer._generate

    def timed(*a, **k):
        start = time.perf_counter()
        result = generate(*a, **k)
        generation.append(time.perf_counter() - start)
        return result

    trainer._generate = timed
    trainer.train()
    best = min(range(1, len(clock.steps)), key=lambda step: clock.steps[step])
    print(json.dumps({
        "step_s": clock.steps[best],
        "generation_s": generation[best],
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }))


if __name__ == "__main__":
    main()
