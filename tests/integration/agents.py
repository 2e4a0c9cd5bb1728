"""Black-box coding agents as `command` agents under `roll`: each makes one tool call, which writes a file, and ends.

Usage: agents.py WORK_DIRECTORY BIN_DIRECTORY [NAME...]
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from swarm import BINARY, Swarm, tool_call, trained

QUERY = "Write the word hello into the file greeting.txt in this directory."
DONE = "The file is written."
TITLE = "A greeting"
# Seconds that an agent may take; one that hangs is a failure, not a hanging check.
PATIENCE = 120

OPENCODE = {
    "autoupdate": False,
    "share": "disabled",
    "model": "ajet/ajet",
    "provider": {
        "ajet": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {"ajet": {}},
        }
    },
}


class Agent:
    """How an agent is started, and what the model must write to make it write a file.

    `command` is a line of shell whose `$1` is the task; `files` are put into the project; `first_turn` is how many
    messages of the assistant its conversations begin with; `rows` is what it leaves beside its conversation.
    """

    def __init__(self, command, tool, arguments, files=None, first_turn=0, others=()):
        self.command, self.tool, self.arguments = command, tool, arguments
        self.files, self.first_turn, self.others = files or {}, first_turn, list(others)


AGENTS = {
    "opencode": Agent(
        'exec opencode run "$1"',
        "write",
        lambda path: {"filePath": path, "content": "hello\n"},
        files={"opencode.json": json.dumps(OPENCODE)},
        others=[TITLE],
    ),
    "codex": Agent(
        "exec codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox --model ajet"
        " -c model_provider=ajet -c model_providers.ajet.name=ajet -c model_providers.ajet.env_key=OPENAI_API_KEY"
        ' -c model_providers.ajet.wire_api=responses -c "model_providers.ajet.base_url=$OPENAI_BASE_URL" "$1"',
        "exec_command",
        lambda path: {"cmd": f"echo hello > {path}"},
    ),
    "claude": Agent(
        "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1;"
        ' exec claude --print --permission-mode acceptEdits --model ajet "$1"',
        "Write",
        lambda path: {"file_path": path, "content": "hello\n"},
    ),
    "qwen": Agent(
        'export OPENAI_MODEL=ajet; exec qwen --approval-mode yolo --prompt "$1"',
        "write_file",
        lambda path: {"file_path": path, "content": "hello\n"},
        first_turn=1,
    ),
}


def write_job(swarm, agent, directory):
    """A job whose batch never fills, so that nothing is updated: the first episode ends it."""
    tasks = directory / "tasks.jsonl"
    batch = swarm.config["data"]["train_batch_size"]
    lines = [json.dumps({"task_id": f"greeting_{n}", "main_query": QUERY}) for n in range(batch)]
    tasks.write_text("\n".join(lines))
    reader = {"type": "jsonl_dataset_file", "jsonl_dataset_file": {"training": {"file_path": str(tasks)}}}
    roll = {
        "swarm_url": swarm.url,
        "steps": 1,
        "max_parallel": 1,
        "agent": {
            "type": "command",
            "cwd": str(directory / "project"),
            # The task as JSON on standard input would be taken for a part of the prompt.
            "argv": ["sh", "-c", agent.command + " < /dev/null", "sh", "{{ main_query }}"],
            "timeout": PATIENCE,
        },
        "reward": {"type": "contains", "answer": DONE},
    }
    job = directory / "job.yaml"
    job.write_text(json.dumps({"ajet": {**swarm.config, "task_reader": reader}, "roll": roll}))
    return job


def first_episode(swarm, job, directory, binaries):
    """Rolls until an episode has ended; the journal's record of it."""
    home = directory / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": f"{binaries}:{os.environ['PATH']}", "RUST_LOG": "debug"}
    journal = directory / "integration/journal.jsonl"
    with open(directory / "roll.log", "wb") as log:
        rolling = subprocess.Popen([BINARY, "roll", str(job)], env=environment, stdout=log, stderr=log)
        try:
            until = time.time() + PATIENCE
            while time.time() < until and rolling.poll() is None:
                for line in journal.read_text().splitlines():
                    record = json.loads(line)
                    if record["record"] == "episode":
                        return record
                time.sleep(0.2)
        finally:
            rolling.send_signal(signal.SIGINT)
            rolling.wait(60)
    raise SystemExit("no episode has ended; the end of the log:\n" + (directory / "roll.log").read_text()[-3000:])


def play(name, directory, binaries):
    agent = AGENTS[name]
    project = directory / "project"
    project.mkdir(parents=True)
    for file, text in agent.files.items():
        (project / file).write_text(text)
    greeting = project / "greeting.txt"
    call = tool_call(agent.tool, agent.arguments(str(greeting)))
    answers = [
        {"contains": "You are a title generator", "text": TITLE},
        {"turn": agent.first_turn, "tool": agent.tool, "text": call},
        {"turn": agent.first_turn + 1, "tool": agent.tool, "text": DONE},
        {"contains": "tokens of", "turn": 0, "text": call},
        {"contains": "tokens of", "turn": 1, "text": DONE},
    ]
    begun = time.time()
    with Swarm(directory, answers) as swarm:
        record = first_episode(swarm, write_job(swarm, agent, directory), directory, binaries)
        # The same texts, alone.
        episode, ask = swarm.claim("eval"), {"role": "user", "content": "tokens of"}
        tokens = {
            call: episode.chat(messages=[ask]),
            DONE: episode.chat(messages=[ask, {"role": "assistant", "content": ""}, ask]),
            TITLE: episode.chat(messages=[{"role": "user", "content": "You are a title generator"}]),
        }
    tokens = {text: answer["choices"][0]["token_ids"] for text, answer in tokens.items()}
    assert greeting.read_text() == "hello\n", "the file was not written"
    assert record["reward"] == "1", f"the reward is {record['reward']}"
    conversation = tokens[call] + tokens[DONE]
    expected = sorted([conversation] + [tokens[other] for other in agent.others])
    rows = record["rows"]
    found = sorted(trained(row) for row in rows)
    assert found == expected, f"{[len(row) for row in found]} tokens are trained, not {[len(row) for row in expected]}; {record['usage']}"
    usage = record["usage"]
    print(
        f"{name}: {usage['llm_calls']} calls, {len(rows)} row(s) of {[len(row['token_ids']) for row in rows]} tokens, "
        f"{usage['cached_tokens']} of {usage['prompt_tokens']} prompt tokens from the cache, {time.time() - begun:.0f} s",
        flush=True,
    )


def main():
    directory, binaries, names = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:] or list(AGENTS)
    failed = []
    for name in names:
        try:
            play(name, directory / name, binaries)
        except (AssertionError, SystemExit) as error:
            failed.append(name)
            print(f"{name}: {error}", flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


main()
