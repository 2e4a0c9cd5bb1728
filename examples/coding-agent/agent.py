"""A coding agent in 50 lines: the model writes files and runs programs by two tools until it says that it is done."""

import json
import os
import pathlib
import subprocess
import sys
import urllib.request

TOOLS = [
    {"name": "write_file", "parameters": {"path": {"type": "string"}, "content": {"type": "string"}}},
    {"name": "run", "parameters": {"command": {"type": "string"}}},
]
SYSTEM = "You are a programmer. Write files and run commands with the tools. Say DONE when the task is solved."


def ask(messages):
    tools = [
        {"type": "function", "function": {**tool, "parameters": {
            "type": "object", "properties": tool["parameters"], "required": list(tool["parameters"])}}}
        for tool in TOOLS
    ]
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({"model": "default", "messages": messages, "tools": tools}).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def use(name, arguments):
    try:
        given = json.loads(arguments)
        if name == "write_file":
            path = (pathlib.Path.cwd() / given["path"]).resolve()
            path.relative_to(pathlib.Path.cwd())  # only below the episode's directory
            path.write_text(given["content"])
            return "written"
        ran = subprocess.run(given["command"], shell=True, capture_output=True, text=True, timeout=30)
        return f"exit code {ran.returncode}\n{ran.stdout}{ran.stderr}"[:2000]
    except (KeyError, TypeError, ValueError, OSError, subprocess.TimeoutExpired) as error:
        return f"error: {error}"


messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": sys.argv[1]}]
for _ in range(10):
    answer = ask(messages)
    messages.append(answer)
    if not answer.get("tool_calls"):
        break
    for call in answer["tool_calls"]:
        result = use(call["function"]["name"], call["function"]["arguments"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
