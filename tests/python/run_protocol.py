"""Takes a server with a real engine and the built-in model through the whole swarm protocol.

usage: python3 tests/python/run_protocol.py BINARY

It starts BINARY as AgentJet's clients do, prints one line for every scenario that holds, and ends with an error at the
first that does not.
"""

import json
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
from spec_client import EpisodeLost, SwarmClient, SwarmError, Task, ThrottlePolicy, WorkflowOutput, auto_start_swarm_server

METHOD = "rollout_until_"
TASKS, REPEATS = 2, 2
DUMP = Path(__file__).parent.parent / "fixtures/config/python_dump.yaml"


def config(name, method="finish_enough_tasks", tasks=TASKS, repeats=REPEATS, **ajet):
    """The training configuration; JSON is YAML."""
    section = {
        "experiment_name": name,
        "model": {"path": "builtin:tiny"},
        "data": {"train_batch_size": tasks, "max_prompt_length": 96, "max_response_length": 32},
        "rollout": {"num_repeat": repeats, "max_response_length_in_one_turn": 8},
        "trainer_common": {"optim": {"lr": 1e-3}, "save_freq": 1},
        "engine": {"device": "cpu", "threads": 1},
        "swarm_mode_sample_collection_method": METHOD + method,
    }
    return json.dumps({"ajet": section | ajet})


def chat(model, text="Reverse the word: tree", stream=False):
    """One chat call as an agent makes it; the answer's text."""
    body = {"model": "any", "messages": [{"role": "user", "content": text}], "stream": stream}
    url, headers = model.base_url + "/chat/completions", {"Authorization": f"Bearer {model.api_key}"}
    response = httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False)
    assert response.status_code == 200, response.text
    if not stream:
        answer = response.json()
        assert answer["usage"]["completion_tokens"] > 0, answer
        return answer["choices"][0]["message"]["content"]
    events = [line[len("data: ") :] for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events
    deltas = [json.loads(event)["choices"] for event in events[:-1]]
    return "".join(choices[0]["delta"].get("content") or "" for choices in deltas if choices)


def play(swarm, task, reward, episode_type="train", **claim):
    """An episode from claim to end."""
    episode, model = swarm.begin_episode(episode_type=episode_type, **claim)
    chat(model, f"Reverse the word: {task}", stream=reward % 2 == 1)
    assert swarm.can_continue_episode(episode) and swarm.is_episode_claimed(episode)
    swarm.end_episode(Task(task), episode, WorkflowOutput(reward=reward, log_metrics={"tool_calls": 2, "rouge": [0.5, 1]}))
    assert not swarm.can_continue_episode(episode)


def refused(status, words, call):
    try:
        call()
    except SwarmError as error:
        assert error.status == status and words in error.detail, error
    else:
        raise AssertionError(f"not refused: {words}")


def metrics(swarm):
    lines = Path(swarm.get_server_experiment_dir(), "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# ---- scenarios ----


def an_offline_server_refuses_in_the_words_that_clients_match_on(swarm):
    assert swarm._get("/health") == {"status": "ok"}
    assert swarm.get_engine_status() == {
        "engine_status": "ENGINE.OFFLINE", "engine_status_detail": None, "global_step": 0,
    }  # fmt: skip
    assert swarm.get_server_experiment_dir() is None
    answer = swarm.claim_once()
    assert answer["success"] is False
    assert "Engine not ready. Current status: [ENGINE.OFFLINE]." in answer["fail_cause"], answer
    refused(400, "No training config found", swarm.start_engine)
    refused(404, "no LLM call", swarm.replay_latest_llm_call)
    stat = swarm.get_rollout_stat()
    assert stat["running_episode_details"] is None and stat["completed_tasks_details"] == {}


def a_configuration_that_is_wrong_is_named_and_the_earlier_one_forgotten(swarm):
    swarm.sync_train_config(config("forgotten"))
    wrong = config("wrong", method="whenever")
    refused(400, "swarm_mode_sample_collection_method", lambda: swarm.sync_train_config(wrong))
    refused(400, "No training config found", swarm.start_engine)
    refused(400, "not valid YAML", lambda: swarm.sync_train_config("ajet: ["))


def the_whole_dump_of_a_python_configuration_is_accepted_and_trains(swarm):
    others, ajet = DUMP.read_text().split("\najet:\n")
    assert len(others.splitlines()) > 700 and "Qwen/Qwen2.5-0.5B-Instruct" in ajet
    # What makes it a matter of seconds; everything else goes as it is.
    ajet = ajet.replace("Qwen/Qwen2.5-0.5B-Instruct", "builtin:tiny")
    for key, value in {"train_batch_size": 1, "num_repeat": 2, "max_response_length_in_one_turn": 8}.items():
        ajet, found = re.subn(rf"^(\s+{key}:) \d+$", rf"\1 {value}", ajet, flags=re.MULTILINE)
        assert found == 1, key
    dump = others + "\najet:\n" + ajet
    swarm.auto_sync_train_config_and_start_engine(dump)
    for number in range(2):
        play(swarm, "dumped", number)
    swarm.wait_until_step(2)
    swarm.stop_engine()


def two_updates_by_enough_episodes(swarm):
    for step in (1, 2):
        for number in range(TASKS * REPEATS):
            assert swarm.get_rollout_stat()["completed_episodes"] == number
            play(swarm, f"task{number}", number)
        swarm.wait_until_step(step + 1)


def two_updates_by_enough_tasks(swarm):
    for step in (1, 2):
        with ThreadPoolExecutor(TASKS * REPEATS) as pool:
            jobs = [pool.submit(play, swarm, f"task{n // REPEATS}", n) for n in range(TASKS * REPEATS)]
            [job.result() for job in jobs]
        swarm.wait_until_step(step + 1)


def two_updates_by_enough_non_dummy_tasks(swarm):
    for step in (1, 2):
        for task, rewards in {"equal": (1, 1), "one": (0, 1), "two": (0, 1)}.items():
            stat = swarm.get_rollout_stat()
            assert stat["completed_non_dummy_tasks"] == (task == "two"), stat
            for reward in rewards:
                play(swarm, task, reward)
        swarm.wait_until_step(step + 1)
    assert swarm.get_rollout_stat()["dropped_episodes"] == {"dummy": 4}


def two_updates_by_any_agreement(swarm):
    other = SwarmClient(swarm.url, swarm.poll, swarm.patience)
    for step in (1, 2):
        play(swarm, "one", step)
        play(other, "two", 0)
        assert swarm.get_engine_status()["global_step"] == step, "nobody agreed yet"
        assert other.agree_sync_weight()
        if step == 1:
            # AgentJet's clients look every 5 s only, and must not miss it.
            time.sleep(5)
            status = swarm.get_engine_status()["engine_status"]
            assert status in ("ENGINE.ROLLING_POST", "ENGINE.WEIGHT_SYNCING"), status
        swarm.wait_until_step(step + 1)


def two_updates_by_agreement_of_all(swarm):
    other = SwarmClient(swarm.url, swarm.poll, swarm.patience)
    answer = swarm._post("/agree_sync_weight", {"client_uuid": swarm.client_uuid})
    assert answer["success"] is False and "not active" in answer["failure_reason"], answer
    for step in (1, 2):
        play(swarm, "one", 1)
        play(other, "two", 0)
        assert swarm.agree_sync_weight()
        clients = swarm.get_rollout_stat()["swarm_client_instruction"]["active_clients"]
        agreed = {client["client_uuid"]: client["allowed_sync_weight"] for client in clients}
        assert agreed == {swarm.client_uuid: True, other.client_uuid: False}, agreed
        assert swarm.get_engine_status()["global_step"] == step, "one has not agreed"
        assert other.agree_sync_weight()
        swarm.wait_until_step(step + 1)
    assert swarm.get_rollout_stat()["swarm_client_instruction"]["active_clients"] == []


def an_eval_is_recorded_and_trains_nothing(swarm):
    play(swarm, "held-out", 0.25, "eval")
    stat = swarm.get_rollout_stat()
    assert stat["completed_episodes"] == 0 and stat["swarm_client_instruction"]["active_clients"] == []
    aborted, model = swarm.begin_episode(episode_type="eval")
    chat(model)
    swarm.abort_episode(aborted)
    step = swarm.get_engine_status()["global_step"]
    for number in range(TASKS * REPEATS):
        play(swarm, f"task{number // REPEATS}", number)
    swarm.wait_until_step(step + 1)
    last = metrics(swarm)[-1]
    assert last["global_step"] == step and last["eval/reward_mean"] == 0.25, last


def a_reward_that_is_no_finite_number_leaves_the_episode_claimed(swarm):
    episode, model = swarm.begin_episode()
    chat(model)
    for reward in (None, [1.0], float("nan"), float("inf")):
        # Older clients write the literals NaN and Infinity, which JSON does not have.
        body = json.dumps(swarm._end_body(episode, WorkflowOutput(reward, metadata={"task_id": "t"}), "t"))
        response = swarm.http.post(swarm.url + "/end_episode", content=body)
        assert response.status_code == 400 and "finite number" in response.json()["detail"], response.text
    assert swarm.can_continue_episode(episode)
    swarm.abort_episode(episode)


def an_end_is_repeated_without_effect_and_belongs_to_its_client(swarm):
    other = SwarmClient(swarm.url)
    episode, model = swarm.begin_episode()
    chat(model)
    before = swarm.get_rollout_stat()["completed_episodes"]
    body = swarm._end_body(episode, WorkflowOutput(1.0, metadata={"task_id": "again"}), "again")
    refused(404, "another client", lambda: other._post("/end_episode", body | {"client_uuid": other.client_uuid}))
    refused(400, "not found", lambda: swarm._post("/end_episode", body | {"episode_uuid": "made-up"}))
    for _ in range(2):
        assert swarm._post("/end_episode", body) == {"success": True}
    assert swarm.get_rollout_stat()["completed_episodes"] == before + 1


def an_abort_while_rolling_frees_the_slot_and_leaves_the_pool(swarm):
    before = swarm.get_rollout_stat()
    episodes = [swarm.begin_episode() for _ in range(TASKS * REPEATS)]
    assert "No available episodes to claim." in swarm.claim_once()["fail_cause"]
    chat(episodes[0][1])
    for episode, model in episodes:
        swarm.abort_episode(episode)
    swarm.abort_episode(episodes[0][0])
    answer = httpx.get(model.base_url + "/models", headers={"Authorization": f"Bearer {model.api_key}"}, trust_env=False)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "episode_not_found", answer.text
    after = swarm.get_rollout_stat()
    assert after["completed_tasks_details"] == before["completed_tasks_details"]
    assert after["running_episode_details"] is None and swarm.get_episode_buffer() == []


def an_abort_in_post_rolling_lets_the_update_begin(swarm):
    step = swarm.get_engine_status()["global_step"]
    late, model = swarm.begin_episode()
    missing = TASKS - swarm.get_rollout_stat()["completed_tasks"]
    for number in range(missing * REPEATS):
        play(swarm, f"fill{number // REPEATS}", number)
    assert swarm.get_engine_status()["engine_status"] == "ENGINE.ROLLING_POST"
    assert "Engine is in post-rolling phase" in swarm.claim_once()["fail_cause"]
    chat(model)
    assert swarm.can_continue_episode(late)
    swarm.abort_episode(late)
    swarm.wait_until_step(step + 1)
    assert metrics(swarm)[-1]["global_step"] == step


def two_throttled_clients_share_a_batch(swarm):
    """With ratio 0.5 neither begins more than half of a batch's tasks while the other works."""
    tasks, repeats = 4, 2
    begun, lock = {}, threading.Lock()

    def work(client, name):
        for number in range(tasks):
            for repeat in range(repeats):
                task = f"{name}{number}"
                policy = ThrottlePolicy(tasks, repeats, task, ratio=0.5)
                episode, model = client.begin_episode(throttle_policy=policy)
                with lock:
                    step = client.get_engine_status()["global_step"]
                    begun.setdefault((step, name), set()).add(task)
                chat(model)
                try:
                    client.end_episode(Task(task), episode, WorkflowOutput(reward=repeat))
                except EpisodeLost:
                    pass

    clients = [(SwarmClient(swarm.url, swarm.poll, swarm.patience), name) for name in "ab"]
    # Something of either side runs all the time, so that the rule for an idle pool does not hide the throttle.
    held = [client.begin_episode(throttle_policy=ThrottlePolicy(tasks, repeats, name, ratio=0.5)) for client, name in clients]
    workers = [threading.Thread(target=work, args=client, daemon=True) for client in clients]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 60
    while swarm.get_rollout_stat()["completed_tasks"] < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    assert {key: len(value) for key, value in begun.items()} == {(1, "a"): 1, (1, "b"): 1}, begun
    assert swarm.get_rollout_stat()["completed_tasks"] == 2
    for (client, _), (episode, _) in zip(clients, held):
        client.abort_episode(episode)
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive(), "it is throttled for ever"
    assert all(len(value) <= tasks for value in begun.values()), begun
    assert swarm.get_engine_status()["global_step"] >= 2


def an_agent_is_debugged_by_abort_while_others_train(swarm):
    debugger = SwarmClient(swarm.url, swarm.poll, swarm.patience)
    step = swarm.get_engine_status()["global_step"]
    for number in range(TASKS * REPEATS):
        episode, model = debugger.begin_episode(discard_episode_timeout=60)
        assert isinstance(chat(model, stream=True), str)
        debugger.abort_episode(episode)
        play(swarm, f"task{number // REPEATS}", number)
    swarm.wait_until_step(step + 1)
    assert metrics(swarm)[-1]["reward_mean"] == 1.5, "the debugged episodes trained"
    replay = swarm.replay_latest_llm_call()
    assert replay["input"]["messages"][0]["role"] == "user" and replay["output"]["choices"], replay
    debugger.push_verbose_log("debug", "seen")
    assert swarm.get_verbose_logs()[-1]["message"] == "seen"


def an_idle_episode_is_discarded_and_its_end_told_so(swarm):
    episode, model = swarm.begin_episode(discard_episode_timeout=0.5)
    deadline = time.monotonic() + 10
    while swarm.can_continue_episode(episode):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    answer = httpx.post(model.base_url + "/chat/completions", json={"messages": []}, trust_env=False,
                        headers={"Authorization": f"Bearer {model.api_key}"})  # fmt: skip
    assert answer.status_code == 404, answer.text
    swarm.episodes[episode] = (time.monotonic(), 240)
    try:
        swarm.end_episode(Task("t"), episode, WorkflowOutput(reward=1))
    except EpisodeLost:
        return
    raise AssertionError("a discarded episode was taken")


def a_forced_restart_stops_and_starts_whatever_runs(swarm):
    swarm.begin_episode()
    before = swarm.get_engine_status()["global_step"]
    swarm.auto_sync_train_config_and_start_engine(config("restarted"))
    assert swarm.get_engine_status()["global_step"] == before, "up already, so nothing was done"
    assert len(swarm.get_episode_buffer()) == 1
    swarm.auto_sync_train_config_and_start_engine(config("restarted"), force_restart=True)
    assert swarm.get_engine_status() == {
        "engine_status": "ENGINE.ROLLING", "engine_status_detail": None, "global_step": 1,
    }  # fmt: skip
    assert swarm.get_episode_buffer() == []
    assert swarm.get_server_experiment_dir().endswith("/restarted")
    refused(400, "offline", lambda: swarm.sync_train_config(config("restarted")))


def a_stop_says_offline_to_everyone(swarm):
    episode, model = swarm.begin_episode()
    swarm.stop_engine()
    assert swarm.get_engine_status()["global_step"] == 0
    assert not swarm.can_continue_episode(episode)
    swarm.abort_episode(episode)
    assert "[ENGINE.OFFLINE]" in swarm.claim_once()["fail_cause"]


def scenarios():
    """Each with the configuration that is started for it, or none where it goes on with what there is."""
    return [
        (an_offline_server_refuses_in_the_words_that_clients_match_on, None),
        (a_configuration_that_is_wrong_is_named_and_the_earlier_one_forgotten, None),
        (the_whole_dump_of_a_python_configuration_is_accepted_and_trains, None),
        (two_updates_by_enough_episodes, config("episodes", "finish_enough_episodes")),
        (two_updates_by_enough_non_dummy_tasks, config("non-dummy", "finish_enough_non_dummy_tasks")),
        (two_updates_by_any_agreement, config("any", "any_client_agree_sync_weight")),
        (two_updates_by_agreement_of_all, config("all", "all_clients_agree_sync_weight")),
        (two_throttled_clients_share_a_batch, config("throttled", tasks=4)),
        (two_updates_by_enough_tasks, config("tasks")),
        (an_eval_is_recorded_and_trains_nothing, None),
        (a_reward_that_is_no_finite_number_leaves_the_episode_claimed, None),
        (an_end_is_repeated_without_effect_and_belongs_to_its_client, None),
        (an_abort_while_rolling_frees_the_slot_and_leaves_the_pool, None),
        (an_abort_in_post_rolling_lets_the_update_begin, None),
        (an_agent_is_debugged_by_abort_while_others_train, None),
        (an_idle_episode_is_discarded_and_its_end_told_so, None),
        (a_forced_restart_stops_and_starts_whatever_runs, None),
        (a_stop_says_offline_to_everyone, None),
    ]


@contextmanager
def serving(binary, **environment):
    """A server as AgentJet's clients start one; its URL and its log. Ended by a signal, as by Ctrl-C."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory, open(Path(directory, "server.log"), "w+") as log:
        server = auto_start_swarm_server(str(Path(binary).resolve()), port, directory, log, environment)
        try:
            yield f"http://127.0.0.1:{port}", Path(log.name)
            server.send_signal(signal.SIGTERM)
            assert server.wait(10) == 0, "it does not end well"
        except BaseException:
            sys.stderr.write(Path(log.name).read_text()[-8000:])
            raise
        finally:
            server.kill()


def a_token_in_the_url_is_all_that_a_client_needs(binary):
    token = "correct-horse-battery"
    with serving(binary, AJET_SWARM_TOKEN=token) as (url, log):
        assert httpx.get(url + "/health", trust_env=False).status_code == 200
        assert httpx.get(url + "/get_engine_status", trust_env=False).status_code == 401
        swarm = SwarmClient(f"{url}/t/{token}", poll=0.2, patience=0.05)
        swarm.auto_sync_train_config_and_start_engine(config("with-token"))
        held, model = swarm.begin_episode()
        listings = json.dumps([swarm.get_rollout_stat(), swarm.get_episode_buffer()])
        for number in range(TASKS * REPEATS - 1):
            play(swarm, f"task{number // REPEATS}", number)
        chat(model)
        swarm.end_episode(Task("task1"), held, WorkflowOutput(reward=0))
        swarm.wait_until_step(2)
        swarm.stop_engine()
        for secret in (token, model.api_key):
            assert secret not in listings and secret not in log.read_text(), "a secret is shown"


def main(binary):
    with serving(binary) as (url, _):
        # A trailing slash, as users write it: its calls have a doubled one.
        swarm = SwarmClient(url + "/", poll=0.2, patience=0.05)
        for scenario, configuration in scenarios():
            started = time.monotonic()
            if configuration is not None:
                swarm.auto_sync_train_config_and_start_engine(configuration, force_restart=True)
            scenario(swarm)
            print(f"ok {scenario.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
    a_token_in_the_url_is_all_that_a_client_needs(binary)
    print("ok a_token_in_the_url_is_all_that_a_client_needs")


if __name__ == "__main__":
    main(sys.argv[1])
