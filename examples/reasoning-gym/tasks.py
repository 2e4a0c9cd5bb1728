"""Prints tasks of reasoning-gym: `DATASET` names the kind, such as chain_sum or needle_haystack."""

import json
import os

import reasoning_gym

name = os.environ.get("DATASET", "chain_sum")
validation = os.environ["AJET_TASK_SET"] == "validation"
dataset = reasoning_gym.create_dataset(name, size=100 if validation else 1000, seed=2 if validation else 1)
for index, entry in enumerate(dataset):
    task = {"task_id": f"{name}_{index}", "main_query": entry["question"], "metadata": {"dataset": name, "entry": entry}}
    print(json.dumps(task, default=str))
