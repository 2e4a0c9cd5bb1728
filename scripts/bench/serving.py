#!/usr/bin/env python3
"""What serving adds to computing, and what it saves: processor time per token outside the model, reuse of prompts, and
memory over many requests.

Needs: a release build and the model (`scripts/get-smollm2.sh`).
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import tempfile

from swarm_load import BINARY, ROOT, OurServer, chat, load, post, stop

CLIENTS = 16
# A model that computes next to nothing, with a tokenizer that makes text all the same.
NOTHING = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 272, "hidden_size": 8,
    "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8,
    "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def processes(root):
    """A process and the children of all of its threads."""
    children = [pid for task in pathlib.Path(f"/proc/{root}/task").iterdir() for pid in (task / "children").read_text().split()]
    return [root, *(pid for child in children for pid in processes(int(child)))]


def cpu_seconds(root):
    """Of user and system, of a process and its children."""
    ticks = 0
    for pid in processes(root):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_per_token(args, model, work, log):
    server = OurServer(args.ours, model, log, work, args.threads, longest_prompt=512)
    try:
        keys = server.keys(CLIENTS)
        asyncio.run(load(server.port, keys, CLIENTS, 1, 8, 1))
        before = cpu_seconds(server.process.pid)
        result = asyncio.run(load(server.port, keys, CLIENTS, args.rounds, 64, 2))
        seconds = cpu_seconds(server.process.pid) - before
        return seconds / (CLIENTS * args.rounds * result["tokens"])
    finally:
        stop(server)


def resident_mb(root):
    """Of a process and its children."""
    statuses = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in processes(root)]
    return sum(int(status.split("VmRSS:")[1].split()[0]) for status in statuses) / 1024


async def soak(server, requests):
    """Many short calls with prompts of their own; the memory after each quarter of them."""
    keys, memory = server.keys(CLIENTS), []

    async def client(number, calls, seed):
        rng = random.Random(seed * 1000 + number)
        for _ in range(calls):
            await chat(server.port, keys[number], [{"role": "user", "content": words(rng, 60)}], 8)

    for quarter in range(4):
        await asyncio.gather(*(client(n, requests // 4 // CLIENTS, quarter) for n in range(CLIENTS)))
        memory.append(resident_mb(server.process.pid))
    print(f"{requests} requests: " + ", ".join(f"{mb:.0f}" for mb in memory) + " MB after each quarter")


def words(rng, count):
    return " ".join(rng.choice("river stone lantern harbour meadow copper whisper falcon".split()) for _ in range(count))


async def ask(port, key, messages, tokens):
    answer = await chat(port, key, messages, tokens)
    return answer.prompt_tokens, answer.cached_tokens


async def reuse(server):
    rng = random.Random(1)
    [key, *keys] = server.keys(CLIENTS + 1)
    conversation = [{"role": "user", "content": words(rng, 1900)}]
    body = {"messages": conversation, "max_tokens": 32}
    whole = await asyncio.to_thread(post, server.port, "/v1/chat/completions", body, key)
    conversation.append(whole["choices"][0]["message"])
    conversation.append({"role": "user", "content": "And then?"})
    prompt, cached = await ask(server.port, key, conversation, 8)
    print(f"second turn: {prompt} prompt tokens, {cached} from the cache, {prompt - cached} computed")
    once = [{"role": "user", "content": words(rng, 470)}]
    answers = await asyncio.gather(*(ask(server.port, key, once, 8) for key in keys))
    prompt, computed = answers[0][0], sum(prompt - cached for prompt, cached in answers)
    print(f"{CLIENTS} at once with one prompt of {prompt} tokens: {computed} prompt tokens computed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--ours", default=str(BINARY))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--soak", type=int, default=2000, help="requests after which memory is looked at")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, open(f"{work}/log", "w") as log:
        config = pathlib.Path(work, "nothing.json")
        config.write_text(json.dumps(NOTHING))
        serving = cpu_per_token(args, f"builtin:random:{config}", work, log)
        whole = cpu_per_token(args, args.model, work, log)
        print(f"processor time a token: {1e3 * serving:.3f} ms with a model that computes nothing, "
              f"{1e3 * whole:.3f} ms with this one: {100 * serving / whole:.1f} % is serving")
        server = OurServer(args.ours, args.model, log, work, args.threads, longest_prompt=2600)
        try:
            asyncio.run(reuse(server))
        finally:
            stop(server)
        server = OurServer(args.ours, args.model, log, work, args.threads)
        try:
            asyncio.run(soak(server, args.soak))
        finally:
            stop(server)


if __name__ == "__main__":
    main()
