"""Makes tests/fixtures/training: what PyTorch computes for GRPO updates of the models in tests/fixtures/models.

    pip install torch transformers peft
    python tests/reference/make_training.py [NAME ...]

With names, only the files of those models and adapters are made.

`batch.json` holds the episodes and settings. `<model>.safetensors` holds, for one update of one epoch, the
log-probabilities of each row's masked-in tokens (`log_probs_0`, ...) and the gradient of every parameter under its own
name; its metadata holds loss, policy loss, KL, entropy and gradient norm of each of two updates of two epochs each.
`adapter/` is a LoRA adapter of the `llama` model as `peft` writes it (`adapter-phi3/` of one whose projections are fused),
with each row's log-probabilities under it and the gradients of one update of one epoch, the model without adapter being the reference.
`adamw.safetensors` holds a trajectory of torch.optim.AdamW: `start`, `gradients` (steps x numbers), `weights` (after
each step), with the settings as metadata. Everything is computed in f64 and stored in f32.
"""

import json
import pathlib
import random
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
OUT = FIXTURES / "training"
MODELS = ["llama", "qwen2", "qwen3", "mistral", "phi3", "smollm3", "granite", "olmo2", "gemma2", "gemma3"]

SETTINGS = dict(
    temperature=0.8, lr=2e-4, weight_decay=0.1, grad_clip=0.5, kl_loss_coef=0.3, entropy_coeff=0.02, clip_ratio=0.2
)


def episodes():
    """Groups with answers that share their start, an episode of two rows, a turn of the user within a row."""
    rng = random.Random(0)
    tokens = lambda n: [rng.randrange(3, 96) for _ in range(n)]
    prompt_a, prompt_b, start, tool = tokens(9), tokens(5), tokens(3), tokens(4)

    def row(*parts):
        ids = [t for part, _ in parts for t in part]
        mask = [m for part, sampled in parts for m in [sampled] * len(part)]
        sampler = [round(rng.uniform(-6.0, -2.0), 3) if m else 0.0 for m in mask]
        return dict(token_ids=ids, loss_mask=mask, logprobs=sampler, truncated=False)

    return [
        dict(task_id="a", episode_uuid="1", reward=1.0, rows=[row((prompt_a, False), (start + tokens(4), True))]),
        dict(task_id="a", episode_uuid="2", reward=-0.5, rows=[row((prompt_a, False), (start + tokens(2), True))]),
        dict(
            task_id="a",
            episode_uuid="3",
            reward=0.25,
            rows=[
                row((prompt_a, False), (tokens(3), True), (tool, False), (tokens(2), True)),
                row((prompt_a + tokens(2), False), (tokens(6), True)),
            ],
        ),
        dict(task_id="b", episode_uuid="1", reward=0.0, rows=[row((prompt_b, False), (tokens(1), True))]),
        dict(task_id="b", episode_uuid="2", reward=3.0, rows=[row((prompt_b, False), (tokens(12), True))]),
    ]


def score(model, row):
    """Log-probabilities and entropies at the masked-in tokens."""
    logits = model(torch.tensor([row["token_ids"]])).logits[0, :-1] / SETTINGS["temperature"]
    log_softmax = torch.log_softmax(logits, -1)
    places = [i for i, m in enumerate(row["loss_mask"]) if m]
    at = torch.tensor(places) - 1
    targets = torch.tensor([row["token_ids"][i] for i in places])
    chosen = log_softmax[at, targets]
    return chosen, -(log_softmax.exp() * log_softmax).sum(-1)[at]


def advantages(batch):
    found = {}
    for task in {e["task_id"] for e in batch}:
        group = [e for e in batch if e["task_id"] == task]
        rewards = torch.tensor([e["reward"] for e in group], dtype=torch.float64)
        scaled = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for e, a in zip(group, scaled):
            found[task, e["episode_uuid"]] = a.item()
    return found


def losses(model, batch, old, reference):
    """The loss with gradients, and its reported parts: episodes weigh alike, tokens of an episode weigh alike."""
    advantage = advantages(batch)
    loss, policy, kls, entropies, log_probs = 0.0, 0.0, [], [], []
    for e in batch:
        count = sum(sum(r["loss_mask"]) for r in e["rows"])
        for r, row in enumerate(e["rows"]):
            key = (e["task_id"], e["episode_uuid"], r)
            new, entropy = score(model, row)
            ratio = (new - (old[key] if old else new.detach())).exp()
            a, eps = advantage[key[:2]], SETTINGS["clip_ratio"]
            term = torch.maximum(-ratio * a, -ratio.clamp(1 - eps, 1 + eps) * a)
            if a < 0:
                term = torch.minimum(term, torch.tensor(-3.0 * a, dtype=term.dtype))
            d = (new - reference[key]).clamp(-20, 20)
            kl = ((-d).exp() + d - 1).clamp(-10, 10)
            weight = 1.0 / (len(batch) * count)
            loss = loss + weight * (
                term + SETTINGS["kl_loss_coef"] * kl - SETTINGS["entropy_coeff"] * entropy
            ).sum()
            policy += weight * term.sum().item()
            kls.append(kl.detach())
            entropies.append(entropy.detach())
            log_probs.append(new.detach())
    return loss, policy, torch.cat(kls).mean().item(), torch.cat(entropies).mean().item(), log_probs


def all_scores(model, batch):
    with torch.no_grad():
        return {
            (e["task_id"], e["episode_uuid"], r): score(model, row)[0] for e in batch for r, row in enumerate(e["rows"])
        }


def optimizer(model):
    parameters = list(model.named_parameters())
    decayed = [p for _, p in parameters if p.dim() > 1]
    others = [p for _, p in parameters if p.dim() == 1]
    groups = [dict(params=decayed, weight_decay=SETTINGS["weight_decay"]), dict(params=others, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=SETTINGS["lr"], betas=(0.9, 0.999), eps=1e-8)


def make_model(name, batch):
    load = lambda: AutoModelForCausalLM.from_pretrained(
        FIXTURES / "models" / name, dtype=torch.float64, attn_implementation="eager"
    )
    model = load()
    reference = all_scores(model, batch)
    loss, *_, log_probs = losses(model, batch, None, reference)
    loss.backward()
    tensors = {f"log_probs_{i}": row for i, row in enumerate(log_probs)}
    tensors.update({n: p.grad for n, p in model.named_parameters()})
    tensors = {n: t.detach().to(torch.float32).contiguous() for n, t in tensors.items()}

    model, updates = load(), []
    adamw = optimizer(model)
    for _ in range(2):
        old, epochs = all_scores(model, batch), []
        for _ in range(2):
            adamw.zero_grad()
            loss, policy, kl, entropy, _ = losses(model, batch, old, reference)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS["grad_clip"]).item()
            adamw.step()
            epochs.append(dict(loss=loss.item(), pg_loss=policy, kl=kl, entropy=entropy, grad_norm=norm))
        updates.append({key: sum(e[key] for e in epochs) / len(epochs) for key in epochs[0]})
    save_file(tensors, OUT / f"{name}.safetensors", metadata=dict(updates=json.dumps(updates)))
    print(name, json.dumps(updates, indent=1))


ADAPTERS = {
    "adapter": ("llama", ["q_proj", "v_proj", "down_proj"]),
    "adapter-phi3": ("phi3", ["qkv_proj", "o_proj", "gate_up_proj"]),
}


def make_adapter(directory, batch):
    torch.manual_seed(1)
    name, targets = ADAPTERS[directory]
    out = OUT / directory
    base = AutoModelForCausalLM.from_pretrained(
        FIXTURES / "models" / name, dtype=torch.float64, attn_implementation="eager"
    )
    base.config._name_or_path = base.name_or_path = f"tests/fixtures/models/{name}"
    settings = dict(r=3, lora_alpha=6, target_modules=targets, task_type="CAUSAL_LM")
    model = get_peft_model(base, LoraConfig(**settings, init_lora_weights=False))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = (0.3 * torch.randn_like(parameter)).to(torch.float32).to(torch.float64)
    tensors = {f"log_probs_{i}": row.float() for i, row in enumerate(all_scores(model, batch).values())}
    with model.disable_adapter():
        reference = all_scores(model, batch)
    losses(model, batch, None, reference)[0].backward()
    adapters = {n.replace(".default", ""): p for n, p in model.named_parameters() if "lora_" in n}
    tensors.update({n: p.grad.float() for n, p in adapters.items()})
    model.float().save_pretrained(out)
    (out / "README.md").unlink()
    save_file(tensors, out / "expected.safetensors")


def make_adamw():
    torch.manual_seed(0)
    settings = dict(lr=0.05, weight_decay=0.1, beta1=0.8, beta2=0.95, eps=1e-6)
    weight = torch.nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    start, gradients, weights = weight.detach().clone(), [], []
    betas = (settings["beta1"], settings["beta2"])
    adamw = torch.optim.AdamW(
        [weight], lr=settings["lr"], betas=betas, eps=settings["eps"], weight_decay=settings["weight_decay"]
    )
    for step in range(12):
        weight.grad = torch.randn(3, 4, dtype=torch.float64) * 10.0 ** (step % 4 - 2)
        gradients.append(weight.grad.clone())
        adamw.step()
        weights.append(weight.detach().clone())
    tensors = dict(start=start, gradients=torch.stack(gradients), weights=torch.stack(weights))
    tensors = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    save_file(tensors, OUT / "adamw.safetensors", metadata={k: str(v) for k, v in settings.items()})


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    batch = episodes()
    (OUT / "batch.json").write_text(json.dumps(dict(settings=SETTINGS, episodes=batch), indent=1) + "\n")
    wanted = sys.argv[1:] or [*MODELS, *ADAPTERS]
    for name in wanted:
        make_adapter(name, batch) if name in ADAPTERS else make_model(name, batch)
    if not sys.argv[1:]:
        make_adamw()


if __name__ == "__main__":
    main()
