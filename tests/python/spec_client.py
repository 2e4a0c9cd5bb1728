"""A swarm client written from the wire protocol alone: synchronous, over httpx, in the shape AgentJet's users know.

It shares no code with the server or with the Rust client, so what both get wrong in the same way shows here. Answers are
checked as strictly as the pydantic models of AgentJet do: a null where a string, list or map is meant is an error.
"""

import os
import random
import subprocess
import threading
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

SERVING = "Interchange server is running in blocking mode"
NEVER_NULL = {
    "client_uuid", "episode_uuid", "fail_cause", "failure_reason", "openai_base_url", "openai_api_key",
    "optional_task_id", "buffer", "entries", "debug_log", "completed_tasks_details", "completed_tasks_rewards",
    "completed_tasks_client_uuids", "swarm_client_instruction", "active_clients",
}  # fmt: skip
STATES = {f"ENGINE.{name}" for name in ("OFFLINE", "BOOTING", "ROLLING", "ROLLING_POST", "WEIGHT_SYNCING")}


class SwarmError(Exception):
    """The server refused, in its own words."""

    def __init__(self, status, detail):
        super().__init__(f"{status}: {detail}")
        self.status, self.detail = status, detail


class EpisodeLost(Exception):
    """The server had given the episode up before it ended."""


@dataclass
class Task:
    task_id: str
    main_query: str = ""


@dataclass
class WorkflowOutput:
    reward: object
    is_success: object = None
    metadata: dict = field(default_factory=dict)
    log_metrics: dict = field(default_factory=dict)


@dataclass
class BaseUrlAndApiKey:
    base_url: str
    api_key: str


@dataclass
class ThrottlePolicy:
    expected_batch_size: int
    expected_num_repeat: int
    current_task_id: str = ""
    ratio: float = 1.5


def reject_nulls(value, name="answer"):
    """Python's models have no optional strings, lists or maps; a null in one is a validation error there."""
    if value is None and name in NEVER_NULL:
        raise AssertionError(f"{name} is null")
    if isinstance(value, dict):
        for key, inner in value.items():
            reject_nulls(inner, key)
    if isinstance(value, list):
        for inner in value:
            assert inner is not None, f"null in the list {name}"
            reject_nulls(inner, name)


class SwarmClient:
    """`poll` is the age at which a cached status is asked for anew (5 s in AgentJet), `patience` scales its pauses."""

    def __init__(self, url, poll=5.0, patience=1.0):
        self.url, self.poll, self.patience = url, poll, patience
        self.client_uuid = str(uuid.uuid4())
        self.http = httpx.Client(timeout=30, trust_env=False)
        self.lock = threading.Lock()
        self.cached = (0.0, None)
        self.begun = OrderedDict()
        self.episodes = {}

    # ---- engine ----

    def get_engine_status(self):
        answer = self._get("/get_engine_status", timeout=10)
        assert answer["engine_status"] in STATES, answer
        assert type(answer["global_step"]) is int, answer
        with self.lock:
            self.cached = (time.monotonic(), answer["engine_status"])
        return answer

    def cached_status(self):
        with self.lock:
            when, status = self.cached
        if status is None or time.monotonic() - when >= self.poll:
            status = self.get_engine_status()["engine_status"]
        return status

    def sync_train_config(self, yaml_as_string):
        assert self._post("/sync_train_config", {"yaml_as_string": yaml_as_string})["success"] is True

    def start_engine(self):
        answer = self._post("/start_engine", {}, timeout=600)
        assert answer["success"] is True and type(answer["pid"]) is int, answer
        self.wait_until("ENGINE.ROLLING", hopeless="ENGINE.OFFLINE")

    def stop_engine(self):
        answer = self._post("/stop_engine", {}, timeout=600)
        assert answer == {"success": True, "failure_reason": ""}, answer
        self.wait_until("ENGINE.OFFLINE")

    def auto_sync_train_config_and_start_engine(self, yaml_as_string, force_restart=False):
        status = self.get_engine_status()["engine_status"]
        if force_restart and status != "ENGINE.OFFLINE":
            self.stop_engine()
            status = "ENGINE.OFFLINE"
        if status == "ENGINE.OFFLINE":
            self.sync_train_config(yaml_as_string)
            self.start_engine()
        elif status not in ("ENGINE.ROLLING", "ENGINE.ROLLING_POST"):
            self.wait_until("ENGINE.ROLLING")

    def wait_until(self, wanted, hopeless=None, seconds=120):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self.get_engine_status()
            if answer["engine_status"] == wanted:
                return answer
            if answer["engine_status"] == hopeless:
                raise SwarmError(200, answer["engine_status_detail"])
            time.sleep(min(0.1, self.poll))
        raise AssertionError(f"not {wanted} after {seconds} s: {answer}")

    def wait_until_step(self, step, seconds=120):
        deadline = time.monotonic() + seconds
        while self.wait_until("ENGINE.ROLLING", "ENGINE.OFFLINE", seconds)["global_step"] != step:
            assert time.monotonic() < deadline, f"step {step} was not reached"
            time.sleep(0.05)

    def get_server_experiment_dir(self):
        return self._get("/get_server_experiment_dir")["server_experiment_dir"]

    # ---- episodes ----

    def begin_episode(self, discard_episode_timeout=240, episode_type="train", throttle_policy=None, seconds=120):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.cached_status() != "ENGINE.ROLLING":
                time.sleep(self.poll * random.uniform(1.0, 1.2))
                continue
            if throttle_policy is not None and self._is_throttled(throttle_policy):
                time.sleep(0.5 * self.patience)
                continue
            answer = self._claim(discard_episode_timeout, episode_type, throttle_policy)
            if answer["success"]:
                return self._began(answer, discard_episode_timeout, throttle_policy)
            cause = answer["fail_cause"]
            if "Engine is syncing weights" in cause or "Engine is in post-rolling phase" in cause:
                time.sleep(15 * self.patience)
            elif "No available episodes to claim." in cause:
                time.sleep(2 * self.patience)
            else:
                raise SwarmError(200, cause)
        raise AssertionError(f"nothing could be claimed for {seconds} s")

    def claim_once(self, discard_episode_timeout=240, episode_type="train"):
        """One claim without any patience, as the server answers it."""
        return self._claim(discard_episode_timeout, episode_type, None)

    def end_episode(self, task, episode_uuid, workflow_output):
        claimed, timeout = self.episodes.pop(episode_uuid)
        if time.monotonic() - claimed > 8 * timeout:
            self.abort_episode(episode_uuid)
            return
        workflow_output.metadata["task_id"] = task.task_id
        body = self._end_body(episode_uuid, workflow_output, task.task_id)
        try:
            # Never repeated, so it has to be answered in time.
            assert self._post("/end_episode", body, timeout=30)["success"] is True
        except SwarmError as error:
            if "WEIGHT_SYNCING" in error.detail or "not found" in error.detail:
                raise EpisodeLost(error.detail) from error
            raise

    def abort_episode(self, episode_uuid):
        self.episodes.pop(episode_uuid, None)
        body = self._end_body(episode_uuid, WorkflowOutput(reward=0.0), "")
        assert self._post("/abort_episode", body)["success"] is True

    def can_continue_episode(self, episode_uuid):
        body = {"client_uuid": self.client_uuid, "episode_uuid": episode_uuid}
        return self._post("/can_continue_episode", body)["can_continue"]

    def is_episode_claimed(self, episode_uuid):
        return self._post("/is_episode_claimed", {"episode_uuid": episode_uuid})["success"]

    def get_episode_buffer(self):
        return self._post("/get_episode_buffer", {})["buffer"]

    def agree_sync_weight(self, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self._post("/agree_sync_weight", {"client_uuid": self.client_uuid})
            if answer["success"]:
                return True
            if self.get_engine_status()["engine_status"] != "ENGINE.ROLLING":
                return False
            time.sleep(2 * self.patience)
        raise AssertionError(f"never accepted: {answer}")

    def get_rollout_stat(self):
        return self._get("/get_current_batch_rollout_pool_information", timeout=10)

    def push_verbose_log(self, tag, message):
        assert self._post("/push_verbose_log", {"tag": tag, "message": message})["success"] is True

    def get_verbose_logs(self):
        return self._get("/get_verbose_logs")["entries"]

    def replay_latest_llm_call(self):
        return self._post("/replay_latest_llm_call", {})

    # ---- inside ----

    def _claim(self, discard_episode_timeout, episode_type, throttle_policy):
        body = {
            "client_uuid": self.client_uuid,
            "episode_type": episode_type,
            "discard_episode_timeout": discard_episode_timeout,
            "throttle_policy": vars(throttle_policy) if throttle_policy else None,
        }
        return self._post("/claim_episode", body)

    def _began(self, answer, timeout, throttle_policy):
        assert answer["client_uuid"] == self.client_uuid and answer["fail_cause"] == "", answer
        assert answer["openai_api_key"].startswith("sk-ajet-"), answer
        uuid_ = answer["episode_uuid"]
        self.episodes[uuid_] = (time.monotonic(), timeout)
        if throttle_policy:
            with self.lock:
                self.begun[throttle_policy.current_task_id] = True
                most = 3 * throttle_policy.expected_batch_size * throttle_policy.expected_num_repeat
                while len(self.begun) > most:
                    self.begun.popitem(last=False)
        # Scheme and authority are those under which this client reaches the server; the path is the server's.
        base_url = self.url.rstrip("/") + urlsplit(answer["openai_base_url"]).path
        return uuid_, BaseUrlAndApiKey(base_url, answer["openai_api_key"])

    def _is_throttled(self, policy):
        stat = self.get_rollout_stat()
        method = stat["sample_collection_method"]
        assert method == "rollout_until_finish_enough_tasks", f"a throttle is of no use with {method}"
        workers = {task: set(clients) for task, clients in stat["completed_tasks_client_uuids"].items()}
        running = stat["running_episode_details"]
        assert running is None or running, "null, not {}, when nothing runs"
        for episode in (running or {}).values():
            assert all(isinstance(value, str) for value in episode.values()), episode
            if episode["optional_task_id"]:
                workers.setdefault(episode["optional_task_id"], set()).add(episode["client_uuid"])
        if policy.current_task_id in self.begun or policy.current_task_id in workers:
            return False
        if running is None and stat["completed_tasks"] < policy.expected_batch_size:
            return False
        own = [task for task, clients in workers.items() if clients == {self.client_uuid}]
        return len(own) >= policy.expected_batch_size * policy.ratio

    def _end_body(self, episode_uuid, workflow_output, task_id):
        return {
            "client_uuid": self.client_uuid,
            "episode_uuid": episode_uuid,
            "workflow_output": vars(workflow_output),
            "task_id": task_id,
            "declare_client_active": True,
        }

    def _get(self, path, timeout=30):
        return self._answer(self.http.get(self.url + path, timeout=timeout))

    def _post(self, path, body, timeout=30):
        return self._answer(self.http.post(self.url + path, json=body, timeout=timeout))

    @staticmethod
    def _answer(response):
        answer = response.json()
        if response.status_code != 200:
            raise SwarmError(response.status_code, answer["detail"])
        reject_nulls(answer)
        return answer


def auto_start_swarm_server(binary, port, directory, log, environment):
    """Starts a server and waits, 60 s at most, for the line by which it says that it is up."""
    server = subprocess.Popen(
        [binary, "start", f"--swarm-port={port}"],
        cwd=directory, env=os.environ | environment, stdout=subprocess.PIPE, stderr=log, text=True,
    )  # fmt: skip
    up = threading.Event()

    def read():
        for line in server.stdout:
            if SERVING in line:
                up.set()

    threading.Thread(target=read, daemon=True).start()
    if not up.wait(60):
        server.kill()
        raise AssertionError("the server did not say within 60 s that it is up")
    return server
