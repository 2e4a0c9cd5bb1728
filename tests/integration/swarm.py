"""A swarm server, with the scripted model unless told otherwise, and calls of the swarm API. Standard library only."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

BINARY = os.environ.get("AJET_SWARM", "target/release/ajet-swarm")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def tool_call(name, arguments):
    """A call as the scripted model's template writes it."""
    return "<tool_call>\n%s\n</tool_call>" % json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


class Episode:
    """A claimed episode."""

    def __init__(self, swarm, claim):
        self.swarm = swarm
        self.uuid = claim["episode_uuid"]
        self.key = claim["openai_api_key"]
        self.base_url = claim["openai_base_url"]
        self.anthropic_base_url = self.base_url.removesuffix("/v1")

    def chat(self, **body):
        """A bare chat call: the whole answer."""
        return self.swarm.call("/v1/chat/completions", {"return_token_ids": True, **body}, key=self.key)

    def finish(self, task, reward):
        """Ends the episode of a task."""
        body = {
            "client_uuid": "integration", "episode_uuid": self.uuid, "task_id": task,
            "workflow_output": {"reward": reward, "metadata": {"task_id": task}},
        }
        assert self.swarm.call("/end_episode", body)["success"], "the end was refused"

    def end(self, reward=1.0):
        """Ends the episode; what the engine's journal has of it."""
        self.finish(self.uuid, reward)
        return self.swarm.journaled(self.uuid)


class Swarm:
    """A running server whose engine samples."""

    def __init__(self, directory, answers, rollout=None, prompt=200000, response=4000, model=None, tasks=1000):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        script = self.directory / "answers.jsonl"
        script.write_text("".join(json.dumps(line) + "\n" for line in answers))
        self.config = {
            "experiment_name": "integration",
            "experiment_dir": str(self.directory / "integration"),
            "model": {"path": str(model or f"builtin:scripted:{script}")},
            "data": {"train_batch_size": tasks, "max_prompt_length": prompt, "max_response_length": response},
            "rollout": {"max_num_seqs": 8, **(rollout or {})},
        }
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = open(self.directory / "server.log", "wb")
        self.process = subprocess.Popen([BINARY, "start", f"--swarm-port={self.port}"], stdout=self.log, stderr=self.log)

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        self.wait("health", lambda: self.get("/health"))
        self.call("/sync_train_config", {"yaml_as_string": json.dumps({"ajet": self.config})})
        self.call("/start_engine", {})
        self.wait("a rolling engine", lambda: self.get("/get_engine_status")["engine_status"] == "ENGINE.ROLLING")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()

    def wait(self, what, ready, seconds=60):
        until = time.time() + seconds
        while time.time() < until:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if ready():
                    return
            time.sleep(0.05)
        raise SystemExit(f"no {what} after {seconds} s:\n" + (self.directory / "server.log").read_text()[-3000:])

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def open(self, path, body, key=None):
        """The answer to a call, to be read."""
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        return urllib.request.urlopen(request, timeout=600)

    def call(self, path, body, key=None):
        with self.open(path, body, key) as answer:
            return json.load(answer)

    def claim(self, episode_type="train"):
        body = {"client_uuid": "integration", "episode_type": episode_type, "discard_episode_timeout": 1800}
        claim = self.call("/claim_episode", body)
        assert claim["success"], claim
        return Episode(self, claim)

    def journaled(self, uuid):
        journal = (self.directory / "integration/journal.jsonl").read_text()
        records = [json.loads(line) for line in journal.splitlines()]
        return next(record for record in records if record.get("episode_uuid") == uuid)

    def engine_pid(self):
        listed = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=True)
        return int(listed.stdout.split()[0])


def trained(row):
    """The ids of a row that are trained."""
    return [token for token, masked in zip(row["token_ids"], row["loss_mask"]) if masked]


def same_row(row, reference):
    """Whether two rows train the same tokens behind the same context, with the same log-probabilities."""
    return (
        row["token_ids"] == reference["token_ids"]
        and row["loss_mask"] == reference["loss_mask"]
        and all(abs(a - b) < 1e-4 for a, b in zip(row["logprobs"], reference["logprobs"]))
    )
