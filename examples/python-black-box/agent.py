"""A black box: reads a task, calls the model with the standard library only, prints what it found."""

import json
import os
import sys
import urllib.request

task = json.load(sys.stdin)
question = task["main_query"] + " Answer with the reversed word only."
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    data=json.dumps({"model": "default", "messages": [{"role": "user", "content": question}]}).encode(),
    headers={"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
with urllib.request.urlopen(request) as response:
    answer = json.load(response)["choices"][0]["message"]["content"] or ""
print(json.dumps({"output": answer.strip().strip(".").lower()}))
