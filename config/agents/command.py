"""Runs one episode: `roll` starts it for each, with the task on standard input and the model in the environment."""

import json
import os
import sys
import urllib.request


def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "default", "messages": messages}).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"] or ""


task = json.load(sys.stdin)  # task_id, main_query, init_messages, env_type, metadata
answer = ask([{"role": "user", "content": task["main_query"]}])
# With the reward `from_agent`, add "reward": a number, and "is_success": true or false.
print(json.dumps({"output": answer}))
