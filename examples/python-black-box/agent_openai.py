"""The same black box with the `openai` package, which finds the model in OPENAI_BASE_URL and OPENAI_API_KEY."""

import json
import sys

from openai import OpenAI

task = json.load(sys.stdin)
question = task["main_query"] + " Answer with the reversed word only."
answer = OpenAI().chat.completions.create(model="default", messages=[{"role": "user", "content": question}])
print(json.dumps({"output": (answer.choices[0].message.content or "").strip().strip(".").lower()}))
