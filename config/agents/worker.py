"""Runs episodes one after the other: `roll` sends a line for each, and reads a line with the same `episode_uuid`."""

import json
import sys
import urllib.request


def ask(episode, messages):
    request = urllib.request.Request(
        episode["base_url"] + "/chat/completions",
        data=json.dumps({"model": episode["model"], "messages": messages}).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + episode["api_key"]},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"] or ""


for line in sys.stdin:
    episode = json.loads(line)
    task = episode["task"]  # task_id, main_query, init_messages, env_type, metadata
    answer = ask(episode, [{"role": "user", "content": task["main_query"]}])
    # With the reward `from_agent`, add "reward": a number, and "is_success": true or false.
    print(json.dumps({"episode_uuid": episode["episode_uuid"], "output": answer}), flush=True)
