"""Lets a coding agent solve one task in an empty directory, and runs the task's test on what it wrote."""

import json
import pathlib
import subprocess
import sys

task = json.load(sys.stdin)
# Any coding agent that runs without questions and finds the model in its environment; the job names agent.py.
agent = [sys.executable, sys.argv[1], task["main_query"]]
subprocess.run(agent, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True, timeout=300)

reward = 0.0
if pathlib.Path("solution.py").exists():
    test = subprocess.run(
        [sys.executable, "-I", "-c", "import sys; sys.path.insert(0, '.')\n" + task["metadata"]["test"]],
        stdout=sys.stderr,
        timeout=60,
    )
    # A part of the reward for a file that is Python at all.
    compiles = subprocess.run([sys.executable, "-m", "py_compile", "solution.py"], stdout=sys.stderr, stderr=subprocess.DEVNULL)
    reward = 1.0 if test.returncode == 0 else 0.2 if compiles.returncode == 0 else 0.0
print(json.dumps({"reward": reward, "is_success": reward == 1.0}))
