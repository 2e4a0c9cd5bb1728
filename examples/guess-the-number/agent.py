"""Plays one game: the model guesses, the agent answers "higher" or "lower", for at most seven guesses."""

import json
import os
import re
import sys
import urllib.request

GUESSES = 7


def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "default", "messages": messages, "max_tokens": 16}).encode(),
        headers={
            "Content-Type": "application/json",
            "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
        },
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"] or ""


def play(rules, secret):
    """Returns the reward, and the number of guesses: 1 for the number, less for what came close."""
    messages = [{"role": "user", "content": rules}]
    closest = 100
    for guess_number in range(1, GUESSES + 1):
        answer = ask(messages)
        found = re.search(r"\d+", answer)
        if not found:
            break
        guess = int(found.group())
        if guess == secret:
            return 1.0, guess_number
        closest = min(closest, abs(guess - secret))
        hint = "higher" if secret > guess else "lower"
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"My number is {hint}."}]
    return 0.5 * (1 - closest / 100), guess_number


task = json.load(sys.stdin)
reward, guesses = play(task["main_query"], task["metadata"]["secret"])
print(json.dumps({"reward": reward, "is_success": reward == 1.0, "log_metrics": {"guesses": guesses}}))
