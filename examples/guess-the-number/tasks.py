"""Prints tasks: a secret number from 1 to 100 each."""

import json
import os
import random

RULES = "I think of a number from 1 to 100. Guess it: answer with one number. I say whether mine is higher or lower."

validation = os.environ["AJET_TASK_SET"] == "validation"
numbers = random.Random(2 if validation else 1)
for index in range(20 if validation else 200):
    secret = {"secret": numbers.randint(1, 100)}
    print(json.dumps({"task_id": f"secret_{index}", "main_query": RULES, "metadata": secret}))
