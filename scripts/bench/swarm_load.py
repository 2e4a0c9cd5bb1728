"""A server of ours with a model, and the load that is put on it or on another one."""

import asyncio
import json
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / "target/release/ajet-swarm"
# Not the chunk that only names the role.
FIRST_TEXT = re.compile(rb'"content": ?"[^"]')
WORDS = "river stone lantern harbour meadow copper whisper falcon autumn garden mirror thunder violet anchor".split()


def prompt(rng):
    """About 64 tokens with SmolLM2's template."""
    words = " ".join(rng.sample(WORDS, 13))
    return [
        {"role": "system", "content": f"{rng.randrange(10**6)} You are a storyteller who never stops early."},
        {"role": "user", "content": f"Write a very long story in plain sentences about these words: {words}."},
    ]


class Answer:
    def __init__(self, seconds_to_first, seconds, usage):
        self.seconds_to_first = seconds_to_first
        self.seconds = seconds
        self.prompt_tokens = usage["prompt_tokens"]
        self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.tokens = usage["completion_tokens"]


async def chat(port, key, messages, max_tokens):
    """One streamed call. Nothing but the last chunks is parsed, so that the load costs little."""
    body = {
        "model": "any", "messages": messages, "max_tokens": max_tokens, "stream": True, "temperature": 1.0,
        "top_p": 1.0, "top_k": 0, "min_p": 0.0, "stream_options": {"include_usage": True},
    }
    if key:
        del body["top_k"]  # ours takes -1 or nothing for all, llama.cpp 0
    data = json.dumps(body).encode()
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {key or 'none'}\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.perf_counter()
    writer.write(head.encode() + data)
    first, received = None, b""
    while piece := await reader.read(65536):
        received += piece
        if first is None and FIRST_TEXT.search(received):
            first = time.perf_counter() - begun
    seconds = time.perf_counter() - begun
    writer.close()
    usages = [json.loads(line[6:]) for line in received.decode().split("\n") if line.startswith("data: {") and '"usage":{' in line]
    if not usages:
        raise SystemExit(f"the server did not answer as expected: {received[:2000].decode()}")
    return Answer(first or seconds, seconds, usages[-1]["usage"])


async def load(port, keys, clients, rounds, max_tokens, seed):
    """All clients at once, each `rounds` calls one after the other."""
    async def client(number):
        rng = random.Random(seed * 1000 + number)
        return [await chat(port, keys[number], prompt(rng), max_tokens) for _ in range(rounds)]

    begun = time.perf_counter()
    answers = await asyncio.gather(*(client(n) for n in range(clients)))
    seconds = time.perf_counter() - begun
    flat = [answer for calls in answers for answer in calls]
    return {
        "tokens_per_s": sum(a.tokens for a in flat) / seconds,
        # Of the first round, in which all clients arrive at once.
        "ttft_ms": 1e3 * statistics.mean(calls[0].seconds_to_first for calls in answers),
        "prompt_tokens": statistics.mean(a.prompt_tokens for a in flat),
        "tokens": statistics.mean(a.tokens for a in flat),
    }


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def post(port, path, body, key="none"):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)


def wait_until(what, ready, seconds=300, process=None):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process and process.poll() is not None:
            raise SystemExit(f"{what} ended with {process.returncode} before it was ready")
        try:
            if ready():
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{what} was not ready after {seconds} s")


class OurServer:
    name = "ajet-swarm"

    def __init__(self, binary, model, log, directory, threads, slots=16, dtype="f32", longest_prompt=192, longest_answer=64):
        self.port = free_port()
        self.process = subprocess.Popen([binary, "start", "--swarm-port", str(self.port)], cwd=directory, stdout=log, stderr=log)
        wait_until(self.name, lambda: get(self.port, "/health"), process=self.process)
        config = {"ajet": {
            "experiment_name": f"bench-{dtype}", "model": {"path": str(model)},
            "data": {"max_prompt_length": longest_prompt, "max_response_length": longest_answer},
            "rollout": {"max_num_seqs": slots}, "lora": {"lora_rank": 8},
            "trainer_common": {"importance_sampling": {"mode": "token"}},
            "engine": {"device": "cpu", "dtype": dtype, "threads": threads},
        }}
        post(self.port, "/sync_train_config", {"yaml_as_string": json.dumps(config)})
        post(self.port, "/start_engine", {})
        wait_until("our engine", lambda: get(self.port, "/get_engine_status")["engine_status"] == "ENGINE.ROLLING")

    def keys(self, clients):
        claim = {"client_uuid": "bench", "episode_type": "eval", "discard_episode_timeout": 600}
        return [post(self.port, "/claim_episode", claim)["openai_api_key"] for _ in range(clients)]


def stop(server):
    server.process.send_signal(signal.SIGINT)
    try:
        server.process.wait(30)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
