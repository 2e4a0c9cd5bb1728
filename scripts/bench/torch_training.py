#!/usr/bin/env python3
"""One training step in PyTorch, as `ajet-swarm bench training` measures ours: forward, backward, clipping, AdamW.

Prints an object with the same keys. Rows are random tokens; the loss is the mean negative log-probability of the next
token, which costs what a policy gradient costs.
"""
import argparse
import json
import resource
import time

import torch
from transformers import AutoModelForCausalLM


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a Hugging Face directory, or DIR/FILE.gguf")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3, help="steps after the first; the fastest is printed")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16: autocast over f32 weights")
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    return parser.parse_args()


def load(args):
    directory, _, file = args.model.rpartition("/")
    where = {"pretrained_model_name_or_path": directory, "gguf_file": file}
    if not file.endswith(".gguf"):
        where = {"pretrained_model_name_or_path": args.model}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, attn_implementation="sdpa")
    if args.lora_rank:
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=args.lora_rank, lora_alpha=2 * args.lora_rank, target_modules="all-linear")
        model = get_peft_model(model, lora)
    return model.train()


def main():
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    model = load(args)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6, weight_decay=0.01, fused=True)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16")
    best = None
    for repeat in range(args.repeats + 1):
        torch.manual_seed(repeat)
        ids = torch.randint(0, model.config.vocab_size, (args.rows, args.tokens))
        start = time.perf_counter()
        with autocast:
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        end = time.perf_counter()
        if repeat > 0 and (best is None or end - start < best[3]):
            best = (forward - start, backward - forward, end - backward, end - start)
    print(json.dumps({
        "rows": args.rows,
        "tokens": args.tokens,
        "forward_s": best[0],
        "backward_s": best[1],
        "optimizer_s": best[2],
        "tokens_per_s": args.rows * args.tokens / best[3],
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }))


if __name__ == "__main__":
    main()
