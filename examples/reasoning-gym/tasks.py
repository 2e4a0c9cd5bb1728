"""Prints tasks of reasoning-gym: `DATASET` names the kind, such as chain_sum or needle_haystack."""

import json
import os

import reasoning_gym

EASIER = {"chain_sum": {"max_terms": 2, "max_digits": 2}}  # a model that never gets a reward learns nothing

name = os.environ.get("DATASET", "chain_sum")
# Item i is made from seed + i: seeds that are near each other give the same items.
validation = reasoning_gym.create_dataset(name, size=100, seed=1_000_000, **EASIER.get(name, {}))
training = reasoning_gym.create_dataset(name, size=1000, seed=1, **EASIER.get(name, {}))
held_out = {entry["question"] for entry in validation}
training = [entry for entry in training if entry["question"] not in held_out]
for index, entry in enumerate(validation if os.environ["AJET_TASK_SET"] == "validation" else training):
    task = {"task_id": f"{name}_{index}", "main_query": entry["question"], "metadata": {"dataset": name, "entry": entry}}
    print(json.dumps(task, default=str))
