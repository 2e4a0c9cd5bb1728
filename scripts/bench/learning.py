"""Whether the built-in model learns to reverse words with each estimator and loss, and how fast.

    cargo build --release && python3 scripts/bench/learning.py [NAME[:SEED] ...]

Prints a line a variant: the mean reward of the first and of the last updates (over as many episodes each), and of the
evaluations before and after. Exits with 1 where a reward does not rise. Needs PyYAML.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("AJET_SWARM", ROOT / "target/release/ajet-swarm")

DAPO = dict(
    loss_agg_mode="token-mean", clip_ratio_low=0.2, clip_ratio_high=0.28, mask_truncated=True,
    overlong=dict(buffer_len=8, penalty_factor=1.0),
)
VARIANTS = {
    "grpo": dict(),
    "rloo": dict(algorithm=dict(adv_estimator="rloo")),
    "reinforce_plus_plus": dict(algorithm=dict(adv_estimator="reinforce_plus_plus")),
    "reinforce_plus_plus_baseline": dict(algorithm=dict(adv_estimator="reinforce_plus_plus_baseline")),
    "gspo": dict(policy_loss="gspo"),
    "cispo": dict(policy_loss="cispo"),
    "dapo": DAPO,
    "int8": dict(rollout=dict(quantization="int8")),
    "dr_grpo": dict(algorithm=dict(norm_adv_by_std_in_grpo=False), loss_agg_mode="seq-mean-token-sum-norm"),
}


def job(name, changes, seed):
    changes = dict(changes)
    rollout = dict(num_repeat=16, **changes.pop("rollout", {}))
    common = dict(
        optim=dict(lr=5.0e-4, lr_scheduler_type="linear", min_lr_ratio=0.1),
        total_training_steps=20,
        mini_batch_num=8,
        use_kl_loss=False,
        seed=seed,
    )
    common.update(changes)
    return dict(
        ajet=dict(
            experiment_name=f"{name}-{seed}",
            model=dict(path="builtin:tiny"),
            data=dict(train_batch_size=128, max_prompt_length=64, max_response_length=32),
            rollout=rollout,
            trainer_common=common,
            task_reader=dict(
                type="reverse_text",
                reverse_text=dict(tasks=2000, validation_tasks=256, min_length=4, max_length=5),
            ),
        ),
        roll=dict(
            steps=20,
            eval=dict(every=20),
            max_parallel=64,
            agent=dict(type="chat", user="{{ main_query }}"),
            reward=dict(type="exact_match", answer="{{ metadata.answer }}"),
        ),
    )


def run(name, changes, seed):
    port = socket.socket()
    port.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{port.getsockname()[1]}"
    port.close()
    with tempfile.TemporaryDirectory() as work:
        path = pathlib.Path(work) / "job.yaml"
        path.write_text(yaml.safe_dump(job(name, changes, seed)))
        begun = time.time()
        out = subprocess.run([PROGRAM, "roll", path, "--swarm-url", url, "--json"], cwd=work, stdout=subprocess.PIPE, check=True)
        seconds = time.time() - begun
    events = [json.loads(line) for line in out.stdout.splitlines()]
    rewards = [e["reward_mean"] for e in events if e["event"] == "step"]
    end = [e for e in events if e["event"] == "end"][-1]
    evals = [end[key]["reward_mean"] for key in ("eval_before", "eval_after")]
    return rewards, evals, seconds


failed = False
chosen = sys.argv[1:] or list(VARIANTS)
print(f"{'variant':30} {'first 3':>8} {'last 3':>8} {'eval before':>12} {'after':>6} {'seconds':>8}")
for name in chosen:
    variant, _, seed = name.partition(":")
    rewards, evals, seconds = run(variant, VARIANTS[variant], int(seed or 1))
    first, last = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    print(f"{name:30} {first:8.3f} {last:8.3f} {evals[0]:12.3f} {evals[1]:6.3f} {seconds:8.0f}", flush=True)
    failed |= last <= first or evals[1] <= evals[0]
sys.exit(failed)
