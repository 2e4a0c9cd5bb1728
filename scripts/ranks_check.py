#!/usr/bin/env python3
"""An engine of several ranks, with the real launcher. Usage: ranks_check.py PROGRAM (built with --features mpi).
Needs mpirun, and pip install httpx safetensors numpy.

1. Five updates on the same episodes by 1, 2 and 4 ranks lead to the same weights (relative l2 distance), full and LoRA.
2. A checkpoint of 4 ranks is resumed by 2, and that one by 1.
3. The quickstart with two ranks learns.
4. Ranks are killed at random moments; no acknowledged episode is missing in updates and journal.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/python"))

import httpx  # noqa: E402
import numpy  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402
from spec_client import EpisodeLost, SwarmClient, SwarmError, Task, WorkflowOutput  # noqa: E402

MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none -np"
TASKS, REPEATS = 4, 4


def config(name, updates, lora=0):
    return f"""
ajet:
  experiment_name: {name}
  model: {{ path: "builtin:tiny" }}
  lora: {{ lora_rank: {lora} }}
  data: {{ train_batch_size: {TASKS}, max_prompt_length: 64, max_response_length: 16 }}
  rollout: {{ num_repeat: {REPEATS}, temperature: 2.0 }}
  engine: {{ threads: 1 }}
  trainer_common:
    use_kl_loss: false
    save_freq: 1000
    total_training_steps: {updates}
    optim: {{ lr: {"1.0e-3" if lora else "3.0e-4"} }}
"""


class Server:
    """A swarm server whose engines have so many ranks; None for an engine without a launcher."""

    def __init__(self, program, directory, ranks):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        launcher = [] if ranks is None else ["--launcher", f"{MPIRUN} {ranks}"]
        self.log = open(Path(directory) / "server.log", "a")
        command = [program, "start", "--swarm-port", str(port), *launcher]
        self.process = subprocess.Popen(command, cwd=directory, stdout=self.log, stderr=self.log)
        self.url = f"http://127.0.0.1:{port}"
        for _ in range(100):
            try:
                httpx.get(f"{self.url}/health")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        self.client = SwarmClient(self.url)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()  # no error for one that has ended
        self.process.wait(60)
        self.log.close()


def play(client, task, step):
    """One episode with a random reward."""
    episode_uuid, api = client.begin_episode()
    answer = httpx.post(
        f"{api.base_url}/chat/completions",
        headers={"authorization": f"Bearer {api.api_key}"},
        json={
            "model": "m",
            "messages": [{"role": "user", "content": f"Reverse: {task}"}],
        },
        timeout=60,
    )
    answer.raise_for_status()
    client.end_episode(Task(task_id=f"{step}-{task}"), episode_uuid, WorkflowOutput(reward=random.random()))
    return episode_uuid


def train(server, yaml, first, last):
    """Makes the updates first..last, one episode after the other."""
    server.client.auto_sync_train_config_and_start_engine(yaml)
    for step in range(first, last + 1):
        for number in range(TASKS * REPEATS):
            play(server.client, "abcdefgh"[number // REPEATS] * 4, step)
        while True:
            status = server.client.get_engine_status()
            if status["engine_status"] == "ENGINE.OFFLINE" or status.get("global_step", 0) > step:
                break
            time.sleep(0.05)


def weights(directory, name, step):
    checkpoint = Path(directory) / "saved_experiments" / name / "checkpoints" / f"global_step_{step}"
    tensors = {}
    for file in [*checkpoint.glob("*.safetensors"), checkpoint / "trainer/trainer.safetensors"]:
        tensors |= {f"{file.name}:{key}": value for key, value in load_file(file).items()}
    return tensors


def distance(a, b):
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    squares = lambda x: sum(float((value.astype(numpy.float64) ** 2).sum()) for value in x.values())
    return (squares({key: a[key] - b[key] for key in a}) / squares(a)) ** 0.5


def prepare(program, work, lora):
    """Five updates by one rank, whose server and engine are killed before there is a checkpoint: all is in the journal."""
    directory = work / f"journal-{lora}"
    directory.mkdir()
    with Server(program, directory, None) as server:
        train(server, config("equal", 100, lora), 1, 5)
        engines = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True).stdout.split()
        for pid in [server.process.pid, *map(int, engines)]:
            os.kill(pid, signal.SIGKILL)
        server.process.wait()
    return directory


def repeat(program, work, journal, ranks, lora):
    """Repeats the updates of a journal with so many ranks; returns the directory with the checkpoint of the fifth."""
    directory = work / f"equal-{lora}-{ranks}"
    shutil.copytree(journal, directory)
    with Server(program, directory, ranks) as server:
        server.client.auto_sync_train_config_and_start_engine(config("equal", 100, lora))
        assert server.client.get_engine_status()["global_step"] == 6
        server.client.stop_engine()
    return directory


def equal_weights(program, work):
    for lora in [0, 8]:
        journal = prepare(program, work, lora)
        alone = weights(repeat(program, work, journal, None, lora), "equal", 5)
        for ranks in [2, 4]:
            apart = distance(alone, weights(repeat(program, work, journal, ranks, lora), "equal", 5))
            print(f"lora_rank {lora}: 5 updates by {ranks} ranks and by one: weights and moments differ by {apart:.1e}")
            assert apart < 1e-5, apart


def resume(program, work):
    """The checkpoint of four ranks goes on with two, and theirs with one."""
    directory = work / "equal-0-4"
    for ranks, step in [(2, 6), (None, 7)]:
        with Server(program, directory, ranks) as server:
            train(server, config("equal", 100), step, step)
            server.client.stop_engine()
        assert weights(directory, "equal", step)
        print(f"step {step} by {ranks or 1} ranks, from the checkpoint before it")


def quickstart(program, work):
    directory = work / "quickstart"
    directory.mkdir()
    with Server(program, directory, 2) as server:
        command = [program, "roll", str(ROOT / "config/jobs/quickstart.yaml"), "--swarm-url", server.url]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    line = re.search(r"^reward +([\d.]+) +([\d.]+)", done.stdout + done.stderr, re.M)
    assert done.returncode == 0 and line, done.stdout + done.stderr
    before, after = map(float, line.groups())
    print(f"quickstart with two ranks: {before} -> {after}")
    assert after > before + 0.3


def ranks_of(pid):
    """Engine processes below mpirun below the server."""
    below = lambda pid: subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    return [int(rank) for launcher in below(pid) for rank in below(launcher)]


def kills(program, work, count, updates=1000):
    """Clients play on while ranks are killed; every acknowledged episode is in an update or in the journal."""
    directory = work / "kills"
    directory.mkdir()
    acknowledged, stop = [], threading.Event()
    with Server(program, directory, 3) as server:
        server.client.auto_sync_train_config_and_start_engine(config("kills", updates))

        def client(number):
            client = SwarmClient(server.url)
            for turn in range(10**6):
                if stop.is_set():
                    return
                try:
                    acknowledged.append(play(client, "abcdefgh"[turn % 8] * 4, turn))
                except (EpisodeLost, SwarmError, httpx.HTTPError, AssertionError, TimeoutError, RuntimeError, KeyError):
                    time.sleep(0.05)

        threads = [threading.Thread(target=client, args=[number], daemon=True) for number in range(6)]
        [thread.start() for thread in threads]
        killed = 0
        while killed < count:
            time.sleep(random.uniform(0.2, 2))
            ranks = ranks_of(server.process.pid)
            if len(ranks) == 3:
                os.kill(random.choice(ranks), signal.SIGKILL)
                killed += 1
            status = server.client.get_engine_status()["engine_status"]
            if status == "ENGINE.OFFLINE":
                server.client.auto_sync_train_config_and_start_engine(config("kills", updates))
        while (status := server.client.get_engine_status()["engine_status"]) != "ENGINE.ROLLING":
            if status == "ENGINE.OFFLINE":
                server.client.auto_sync_train_config_and_start_engine(config("kills", updates))
            time.sleep(0.2)
        time.sleep(2)
        stop.set()
        [thread.join(60) for thread in threads]
        server.client.stop_engine()
    # The index of episodes is for people and may miss one that a kill interrupted: the journal and the updates count.
    experiment = directory / "saved_experiments/kills"
    trained = sum(json.loads(line)["episodes"] for line in (experiment / "metrics.jsonl").read_text().splitlines())
    waiting = re.findall(r'"episode_uuid":"([^"]+)"', (experiment / "journal.jsonl").read_text())
    twice = len(waiting) - len(set(waiting))
    print(
        f"{count} kills of ranks: {len(acknowledged)} episodes acknowledged, {trained} trained on and {len(waiting)} in "
        f"the journal, {twice} of them twice"
    )
    assert trained + len(waiting) >= len(acknowledged) == len(set(acknowledged)) and twice == 0


def main():
    program = str(Path(sys.argv[1]).resolve())
    assert shutil.which("mpirun"), "mpirun is missing; Debian: apt-get install openmpi-bin"
    os.environ.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        equal_weights(program, work)
        resume(program, work)
        quickstart(program, work)
        kills(program, work, int(os.environ.get("KILLS", "20")))


if __name__ == "__main__":
    main()
