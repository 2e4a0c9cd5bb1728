"""Asks the model a question of reasoning-gym and lets the data set score the answer. Imports cost once for each worker."""

import json
import sys
import urllib.request

import reasoning_gym

INSTRUCTION = "Answer with the result only."


def ask(episode, question):
    messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": question}]
    request = urllib.request.Request(
        episode["base_url"] + "/chat/completions",
        data=json.dumps({"model": episode["model"], "messages": messages}).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + episode["api_key"]},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"] or ""


for line in sys.stdin:
    episode = json.loads(line)
    task = episode["task"]
    words = ask(episode, task["main_query"]).split()
    answer = words[-1].strip(".*") if words else ""  # small models like to say more than the result
    score = reasoning_gym.get_score_answer_fn(task["metadata"]["dataset"])
    reward = float(score(answer, task["metadata"]["entry"]))
    answered = {"episode_uuid": episode["episode_uuid"], "output": answer, "reward": reward, "is_success": reward == 1.0}
    print(json.dumps(answered), flush=True)
