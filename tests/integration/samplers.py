"""A LoRA training whose episodes are sampled by vLLM and by `ajet-swarm serve`; vLLM is killed in the middle.

Usage: samplers.py WORK_DIRECTORY. Needs vllm, torch and transformers. Prints each step's reward and mismatch.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import torch
import transformers

from swarm import BINARY, Swarm, free_port

ROOT = pathlib.Path(__file__).parents[2]
TASKS, REPEATS, BATCHES = 4, 8, 10
# vLLM compiles kernels at its first start.
PATIENCE = 1800


def make_model(directory):
    """A random model of a size that vLLM's attention has kernels for, with the tokenizer of a fixture."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=256, bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=False, initializer_range=0.2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    for name in ["chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(ROOT / "tests/fixtures/models/llama" / name, directory)


class Process:
    """A server, killed at the end."""

    def __init__(self, command, log, ready, **variables):
        self.command, self.log, self.ready = command, open(log, "ab"), ready
        self.variables = {**os.environ, **variables}
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log, env=self.variables, start_new_session=True)

    def kill(self):
        # Its group: vLLM has processes of its own.
        os.killpg(self.process.pid, 9)
        self.process.wait()


def vllm(model, port, directory):
    command = [
        str(pathlib.Path(sys.executable).parent / "vllm"), "serve", str(model), f"--port={port}", "--host=127.0.0.1",
        "--dtype=float32", "--max-model-len=256", "--enforce-eager", "--enable-lora", "--max-lora-rank=16",
        "--max-loras=1", "--served-model-name=base",
    ]
    return Process(
        command, directory / "vllm.log", f"http://127.0.0.1:{port}/health", VLLM_ALLOW_RUNTIME_LORA_UPDATING="True",
        VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1",
    )


def serve(model, port, adapters, directory):
    command = [BINARY, "serve", str(model), f"--port={port}", "--device=cpu", f"--adapters={adapters}"]
    return Process(command, directory / "serve.log", f"http://127.0.0.1:{port}/health")


def batch(swarm):
    """Runs the episodes of a batch, some at a time: the shorter an answer, the better. Returns the mean reward."""
    rewards = []

    def episodes(task):
        for _ in range(REPEATS):
            episode = swarm.claim()
            answer = episode.chat(model="m", messages=[{"role": "user", "content": f"task {task}"}])
            reward = 1 / (1 + answer["usage"]["completion_tokens"])
            episode.finish(f"task {task}", reward)
            rewards.append(reward)

    threads = [threading.Thread(target=episodes, args=[task]) for task in range(TASKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rewards) == TASKS * REPEATS, "an episode failed"
    rolling = lambda: swarm.get("/get_engine_status")["engine_status"] == "ENGINE.ROLLING"
    swarm.wait("update", rolling)
    return sum(rewards) / len(rewards)


def endpoints(swarm):
    return (swarm.get("/status")["sampling"] or {}).get("endpoints", [])


def all_ready(swarm):
    found = endpoints(swarm)
    return bool(found) and all(endpoint["weight_version"] is not None for endpoint in found)


def main(directory):
    directory = pathlib.Path(directory).resolve()
    model, adapters = directory / "model", directory / "adapters"
    for made in [model, adapters]:
        made.mkdir(parents=True, exist_ok=True)
    make_model(model)
    ports = [free_port(), free_port()]
    samplers = [vllm(model, ports[0], directory), serve(model, ports[1], adapters, directory)]
    try:
        rollout = {
            "num_repeat": REPEATS, "endpoints": [f"http://127.0.0.1:{port}" for port in ports],
            "adapter_dir": str(adapters), "compute_madness_checklist": [],
        }
        swarm = Swarm(directory, [], rollout, prompt=128, response=32, model=model, tasks=TASKS)
        swarm.config["lora"] = {"lora_rank": 8}
        swarm.config["trainer_common"] = {"optim": {"lr": 1e-2}, "use_kl_loss": False}
        swarm.config["engine"] = {"device": "cpu", "threads": 1}
        with swarm:
            swarm.wait("endpoints", lambda: all_ready(swarm), PATIENCE)
            rewards = []
            for number in range(1, BATCHES + 1):
                if number == 4:
                    threading.Timer(0.2, samplers[0].kill).start()
                if number == 7:
                    samplers[0].start()
                    swarm.wait("vLLM again", lambda: all_ready(swarm), PATIENCE)
                rewards.append(batch(swarm))
                print(f"batch {number}: mean reward {rewards[-1]:.4f}", [e["sampled_tokens"] for e in endpoints(swarm)], flush=True)
                if number == 4:
                    swarm.wait("loss of vLLM", lambda: endpoints(swarm)[0]["problem"])
            served = [endpoint["sampled_tokens"] for endpoint in endpoints(swarm)]
        lines = (directory / "integration/metrics.jsonl").read_text().splitlines()
        for step in map(json.loads, lines):
            names = ["reward_mean", "mismatch_kl", "endpoints/ready", "endpoints/token_share"]
            print(step["global_step"], {name: step.get(name) for name in names})
            # None for a step whose answers have equal rewards, which computes nothing.
            assert abs(step.get("mismatch_kl", 0)) < 1e-3, "the endpoints had other weights"
        assert all(served), f"an endpoint sampled nothing: {served}"
        assert sum(rewards[-2:]) > 1.3 * sum(rewards[:2]), f"the reward has not risen: {rewards}"
        print("ok: vLLM and serve sampled, vLLM was killed and came back, and the reward rose")
    finally:
        for sampler in samplers:
            sampler.kill()


if __name__ == "__main__":
    main(sys.argv[1])
