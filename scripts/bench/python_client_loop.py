#!/usr/bin/env python3
"""Seconds that a Python client needs for four updates of the built-in model, with the waits of AgentJet's own client
(15 s after a claim during an update, 5 s between two looks at the engine's state).

Usage: python_client_loop.py target/release/ajet-swarm      needs: pip install httpx
"""

import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/python"))
from spec_client import EpisodeLost, SwarmClient, Task, WorkflowOutput, auto_start_swarm_server  # noqa: E402

import httpx  # noqa: E402

TASKS, REPEATS, UPDATES = 4, 4, 4
CONFIG = f"""
ajet:
  experiment_name: python-client-loop
  model: {{ path: "builtin:tiny" }}
  data: {{ train_batch_size: {TASKS}, max_prompt_length: 64, max_response_length: 32 }}
  rollout: {{ num_repeat: {REPEATS} }}
  trainer_common: {{ use_kl_loss: false }}
"""


def free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def work(swarm, number):
    """One of as many threads as a batch has episodes: an episode after the other, until the updates are done."""
    batch = 0
    while swarm.get_engine_status()["global_step"] <= UPDATES:
        play(swarm, f"task-{batch}-{number // REPEATS}", number % 2)
        batch += 1


def play(swarm, task_id, reward):
    episode_uuid, api = swarm.begin_episode()
    answer = httpx.post(
        f"{api.base_url}/chat/completions",
        headers={"authorization": f"Bearer {api.api_key}"},
        json={"model": "m", "messages": [{"role": "user", "content": "Reverse: abcd"}]},
        timeout=60,
    )
    answer.raise_for_status()
    try:
        swarm.end_episode(Task(task_id=task_id), episode_uuid, WorkflowOutput(reward=float(reward)))
    except EpisodeLost:
        pass  # its batch was full


def main():
    with tempfile.TemporaryDirectory() as directory, open(Path(directory) / "server.log", "w") as log:
        port = free_port()
        server = auto_start_swarm_server(str(Path(sys.argv[1]).resolve()), port, directory, log, {})
        try:
            swarm = SwarmClient(f"http://127.0.0.1:{port}")
            swarm.auto_sync_train_config_and_start_engine(CONFIG)
            slept = []
            sleep = time.sleep
            time.sleep = lambda seconds: (slept.append((threading.get_ident(), seconds)), sleep(seconds))
            begun = time.monotonic()
            with ThreadPoolExecutor(TASKS * REPEATS) as pool:
                list(pool.map(lambda number: work(swarm, number), range(TASKS * REPEATS)))
            seconds = time.monotonic() - begun
            longest = max((s for _, s in slept), default=0.0)
            print(f"{UPDATES} updates in {seconds:.1f} s; longest sleep {longest:.1f} s")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
