"""Makes tests/fixtures/training/losses.json: what PyTorch's autograd makes of every estimator, loss and correction.

    pip install torch transformers peft
    python tests/reference/make_losses.py

Each variant is trained for one update of two epochs on the episodes of `batch.json`, with the model
tests/fixtures/models/llama in f64; stored are the configuration's words for it and the means over the epochs of loss,
policy loss, KL and gradient norm. Formulas: GRPO arXiv 2402.03300, Dr.GRPO 2503.20783, RLOO 2402.14740, REINFORCE++
2501.03262, GSPO 2507.18071, CISPO 2506.13585, DAPO 2503.14476, KL estimators by Schulman.
"""

import json

import torch
from transformers import AutoModelForCausalLM

from make_training import FIXTURES, OUT, SETTINGS, all_scores, episodes, optimizer, score

NORM = 10  # max_response_length, the constant of seq-mean-token-sum-norm
DEFAULTS = dict(
    adv_estimator="grpo",
    norm_adv_by_std_in_grpo=True,
    policy_loss="ppo_clip",
    clip=(0.2, 0.2),
    loss_agg_mode="seq-mean-token-mean",
    kl_loss_type="low_var_kl",
    importance_sampling=dict(mode="off", cap=2.0),
    episode_level=True,
)
VARIANTS = [
    dict(),
    dict(norm_adv_by_std_in_grpo=False, loss_agg_mode="seq-mean-token-sum-norm"),
    dict(adv_estimator="rloo"),
    dict(adv_estimator="reinforce_plus_plus"),
    dict(adv_estimator="reinforce_plus_plus_baseline"),
    dict(policy_loss="gspo", clip=(3e-4, 4e-4)),
    dict(policy_loss="cispo"),
    dict(loss_agg_mode="token-mean", clip=(0.2, 0.28)),
    dict(kl_loss_type="kl"),
    dict(kl_loss_type="mse"),
    dict(kl_loss_type="kl+"),
    dict(kl_loss_type="low_var_kl+"),
    dict(importance_sampling=dict(mode="token", cap=1.5)),
    dict(importance_sampling=dict(mode="sequence", cap=3.0)),
    dict(episode_level=False),
    dict(episode_level=False, adv_estimator="reinforce_plus_plus_baseline"),
]


def rows_of(batch):
    return [(e, r, row) for e in batch for r, row in enumerate(e["rows"])]


def advantages(batch, v):
    """An advantage a row. Samples are episodes, or rows where those count by themselves."""
    rows = rows_of(batch)
    key = lambda e, r: (e["task_id"], e["episode_uuid"], None if v["episode_level"] else r)
    reward, tokens = {}, {}
    for e, r, row in rows:
        reward[key(e, r)] = e["reward"]
        tokens[key(e, r)] = tokens.get(key(e, r), 0) + sum(row["loss_mask"])
    found = {}
    for k in reward:
        group = torch.tensor([reward[o] for o in reward if o[0] == k[0]], dtype=torch.float64)
        centred, n = reward[k] - group.mean(), len(group)
        found[k] = {
            "grpo": lambda: centred / (group.std() + 1e-6) if v["norm_adv_by_std_in_grpo"] else centred,
            "rloo": lambda: centred * n / (n - 1),
            "reinforce_plus_plus": lambda: torch.tensor(reward[k], dtype=torch.float64),
            "reinforce_plus_plus_baseline": lambda: centred,
        }[v["adv_estimator"]]().item()
    if "plus_plus" in v["adv_estimator"]:
        by_token = torch.tensor([found[k] for k in found for _ in range(tokens[k])], dtype=torch.float64)
        found = {k: ((a - by_token.mean()) / (by_token.var() + 1e-8).sqrt()).item() for k, a in found.items()}
    return [found[key(e, r)] for e, r, _ in rows]


def weights(batch, v):
    """A weight a row for each of its tokens."""
    rows = rows_of(batch)
    sequence = lambda e, r: (e["task_id"], e["episode_uuid"], None if v["episode_level"] else r)
    tokens = {}
    for e, r, row in rows:
        tokens[sequence(e, r)] = tokens.get(sequence(e, r), 0) + sum(row["loss_mask"])
    count, total = len(tokens), sum(tokens.values())
    return [
        {
            "seq-mean-token-mean": 1 / (count * tokens[sequence(e, r)]),
            "token-mean": 1 / total,
            "seq-mean-token-sum-norm": 1 / (count * NORM),
        }[v["loss_agg_mode"]]
        for e, r, _ in rows
    ]


def policy_term(v, new, old, a):
    low, high = v["clip"]
    if v["policy_loss"] == "cispo":
        return -(new - old).exp().clamp(max=1 + high).detach() * a * new
    delta = new - old
    if v["policy_loss"] == "gspo":
        delta = delta.mean().expand_as(delta)
    ratio = delta.exp()
    term = torch.maximum(-ratio * a, -ratio.clamp(1 - low, 1 + high) * a)
    if v["policy_loss"] == "ppo_clip" and a < 0:
        term = torch.minimum(term, torch.tensor(-3.0 * a, dtype=term.dtype))
    return term


def kl_term(v, new, reference):
    d = (new - reference).clamp(-20, 20)
    estimate = {"kl": d, "mse": d**2 / 2, "low_var_kl": ((-d).exp() + d - 1).clamp(-10, 10)}
    name = v["kl_loss_type"]
    if not name.endswith("+"):
        return estimate[name]
    return estimate["mse"] - estimate["mse"].detach() + estimate[name[:-1]].detach()


def correction(v, row, old):
    sampler = torch.tensor([p for p, m in zip(row["logprobs"], row["loss_mask"]) if m], dtype=torch.float64)
    d, cap = old - sampler, v["importance_sampling"]["cap"]
    mode = v["importance_sampling"]["mode"]
    if mode == "off":
        return torch.ones_like(d)
    d = d.sum().expand_as(d) if mode == "sequence" else d
    return d.clamp(-20, 20).exp().clamp(max=cap)


def run(batch, changes):
    v = {**DEFAULTS, **changes}
    model = AutoModelForCausalLM.from_pretrained(
        FIXTURES / "models" / "llama", dtype=torch.float64, attn_implementation="eager"
    )
    adamw = optimizer(model)
    before = list(all_scores(model, batch).values())
    advantage, weight, epochs = advantages(batch, v), weights(batch, v), []
    for _ in range(2):
        adamw.zero_grad()
        loss, policy, kls = 0.0, 0.0, []
        for i, (_, _, row) in enumerate(rows_of(batch)):
            new, entropy = score(model, row)
            term = correction(v, row, before[i]) * policy_term(v, new, before[i], advantage[i])
            kl = kl_term(v, new, before[i])
            rest = SETTINGS["kl_loss_coef"] * kl - SETTINGS["entropy_coeff"] * entropy
            loss = loss + weight[i] * (term + rest).sum()
            policy += weight[i] * term.sum().item()
            kls.append(kl.detach())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS["grad_clip"]).item()
        adamw.step()
        epochs.append(dict(loss=loss.item(), pg_loss=policy, kl=torch.cat(kls).mean().item(), grad_norm=norm))
    expected = {key: sum(e[key] for e in epochs) / len(epochs) for key in epochs[0]}
    return dict(settings=dict(v, norm=NORM), expected=expected)


if __name__ == "__main__":
    found = [run(episodes(), changes) for changes in VARIANTS]
    (OUT / "losses.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps([f["expected"] for f in found], indent=1))
