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

Experts have the names that they have in files, one by one, whatever the layout in memory is; so do their adapters, which
`peft` converts when it loads them. The two updates leave routers frozen.
"""

import json
import pathlib
import random
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
OUT = FIXTURES / "training"
MODELS = [
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "phi3",
    "smollm3",
    "granite",
    "olmo2",
    "gemma2",
    "gemma3",
    "qwen3-moe",
    "qwen3-moe-mixed",
    "mixtral",
]

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
    parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    decayed = [p for _, p in parameters if p.dim() > 1]
    others = [p for _, p in parameters if p.dim() == 1]
    groups = [dict(params=decayed, weight_decay=SETTINGS["weight_decay"]), dict(params=others, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=SETTINGS["lr"], betas=(0.9, 0.999), eps=1e-8)


def load(name):
    model = AutoModelForCausalLM.from_pretrained(
        FIXTURES / "models" / name, dtype=torch.float64, attn_implementation="eager"
    )
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")
    return model


def in_files(model, tensors):
    """Tensors by the names of a model's parameters in memory -> those by their names in files."""
    mixtral = model.config.model_type == "mixtral"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    found = {}
    for name, tensor in tensors.items():
        routed = ".mlp.experts." in name or name.endswith(".mlp.gate.weight")
        name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral and routed else name
        module, _, part = name.rpartition(".")
        for number, own in enumerate(tensor if ".experts." in name else []):
            if part == "down_proj":
                found[f"{module}.{number}.{down}.weight"] = own
            else:
                found[f"{module}.{number}.{gate}.weight"], found[f"{module}.{number}.{up}.weight"] = own.chunk(2)
        if ".experts." not in name:
            found[name] = tensor
    return found


def make_model(name, batch):
    model = load(name)
    reference = all_scores(model, batch)
    loss, *_, log_probs = losses(model, batch, None, reference)
    loss.backward()
    tensors = {f"log_probs_{i}": row for i, row in enumerate(log_probs)}
    tensors.update(in_files(model, {n: p.grad for n, p in model.named_parameters()}))
    tensors = {n: t.detach().to(torch.float32).contiguous() for n, t in tensors.items()}

    model, updates = load(name), []
    for n, p in model.named_parameters():
        p.requires_grad_(not n.endswith(".mlp.gate.weight"))
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
EXPERT_ADAPTERS = {
    "adapter-qwen3-moe": ("qwen3-moe", ["q_proj", "gate_proj", "up_proj", "down_proj"]),
    "adapter-mixtral": ("mixtral", ["v_proj", "w1", "w2", "w3"]),
}


def make_adapter(directory, batch):
    torch.manual_seed(1)
    name, targets = ADAPTERS[directory]
    out = OUT / directory
    base = load(name)
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


def make_expert_adapter(directory, batch):
    """An adapter of single experts, whose weights are put together here; `peft` must find the same log-probabilities."""
    torch.manual_seed(2)
    name, targets = EXPERT_ADAPTERS[directory]
    out, rank, scale = OUT / directory, 3, 2.0
    out.mkdir(exist_ok=True)
    model = load(name)
    stacked = {n: p.detach() for n, p in model.named_parameters()}
    factors, random_factor = {}, lambda *shape: (0.3 * torch.randn(*shape)).double().requires_grad_()
    for n, weight in in_files(model, stacked).items():
        module = n.removesuffix(".weight")
        if module.rpartition(".")[2] in targets:
            factors[f"base_model.model.{module}.lora_A.weight"] = random_factor(rank, weight.shape[1])
            factors[f"base_model.model.{module}.lora_B.weight"] = random_factor(weight.shape[0], rank)
    save_file({n: f.detach().float() for n, f in factors.items()}, out / "adapter_model.safetensors")
    config = dict(
        peft_type="LORA", task_type="CAUSAL_LM", r=rank, lora_alpha=rank * scale, target_modules=targets,
        base_model_name_or_path=f"tests/fixtures/models/{name}",
    )  # fmt: skip
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")

    class Adapted(torch.nn.Module):
        def forward(self, ids):
            delta = lambda n: (
                scale * factors[f"base_model.model.{n}.lora_B.weight"] @ factors[f"base_model.model.{n}.lora_A.weight"]
                if f"base_model.model.{n}.lora_A.weight" in factors
                else 0
            )
            files = {n: w + delta(n.removesuffix(".weight")) for n, w in in_files(model, stacked).items()}
            return torch.func.functional_call(model, in_memory(model, files), (ids,))

    tensors = {f"log_probs_{i}": row.float() for i, row in enumerate(all_scores(Adapted(), batch).values())}
    losses(Adapted(), batch, None, all_scores(model, batch))[0].backward()
    tensors.update({n: f.grad.float() for n, f in factors.items()})
    save_file(tensors, out / "expected.safetensors")
    there = all_scores(PeftModel.from_pretrained(load(name), out).double(), batch).values()
    apart = max((a - tensors[f"log_probs_{i}"]).abs().max().item() for i, a in enumerate(there))
    print(f"{directory}: log-probabilities in peft differ by {apart:.1e}")
    assert apart < 1e-4


def in_memory(model, files):
    """The other way round than `in_files`."""
    found = {}
    for name in dict(model.named_parameters()):
        if ".mlp.experts." not in name:
            other = name.replace(".mlp.", ".block_sparse_moe.")
            found[name] = files[name] if name in files else files[other]
            continue
        module, _, part = name.rpartition(".")
        mixtral = model.config.model_type == "mixtral"
        module = module.replace(".mlp.", ".block_sparse_moe.") if mixtral else module
        gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        own = lambda number, part: files[f"{module}.{number}.{part}.weight"]
        numbers = range(model.config.num_experts)
        if part == "down_proj":
            found[name] = torch.stack([own(n, down) for n in numbers])
        else:
            found[name] = torch.stack([torch.cat([own(n, gate), own(n, up)]) for n in numbers])
    return found


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
    wanted = sys.argv[1:] or [*MODELS, *ADAPTERS, *EXPERT_ADAPTERS]
    for name in wanted:
        make = make_adapter if name in ADAPTERS else make_expert_adapter if name in EXPERT_ADAPTERS else make_model
        make(name, batch)
    if not sys.argv[1:]:
        make_adamw()


if __name__ == "__main__":
    main()
