"""Opens what `scripts/export-check.sh` wrote with transformers, peft and tensorboard; its only argument is the folder."""

import json
import pathlib
import sys

import torch
from peft import PeftModel
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

work = pathlib.Path(sys.argv[1])
messages = [{"role": "user", "content": "Reverse: stone"}]


def load(name, **options):
    return AutoModelForCausalLM.from_pretrained(work / name, **options).eval()


tokenizer = AutoTokenizer.from_pretrained(work / "base")
ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
for name in ["base16", "adapter", "merged"]:
    other = AutoTokenizer.from_pretrained(work / name)
    again = other.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert torch.equal(ids["input_ids"], again["input_ids"]), name


@torch.no_grad()
def logits(model):
    return model(**ids).logits.float()


base, merged = load("base", dtype="auto"), load("merged", dtype="auto")
assert base.dtype == merged.dtype == torch.float32
half = load("base16", dtype="auto")
assert half.dtype == torch.bfloat16
base_logits = logits(base)
distance = lambda a, b: ((a - b).norm() / b.norm()).item()
rounded = distance(logits(half), base_logits)
answer = base.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1] :]
adapted = PeftModel.from_pretrained(base, work / "adapter").eval()
adapted_logits = logits(adapted)
moved = distance(adapted_logits, base_logits)
apart = distance(logits(merged), adapted_logits)
print(f"answer {tokenizer.decode(answer)!r}; bf16 is off by {rounded:.1e}, the adapter moves logits by {moved:.1e}")
print(f"the merged model differs from base and adapter in peft by {apart:.1e}")
assert rounded < 0.05 and moved > 1e-4 and apart < 1e-5

for name in ["whole", "adapted"]:
    experiment = work / "saved_experiments" / name
    lines = [json.loads(line) for line in open(experiment / "metrics.jsonl")]
    lines = [line for line in lines if "episodes" in line]
    events = EventAccumulator(str(experiment / "tensorboard"))
    events.Reload()
    for metric in ["reward_mean", "loss", "grad_norm", "seconds/update"]:
        told = [(event.step, event.value) for event in events.Scalars(metric)]
        written = [(line["global_step"], line[metric]) for line in lines]
        assert [s for s, _ in told] == [s for s, _ in written] == [1, 2], (metric, told, written)
        assert all(abs(a - b) <= 1e-6 * max(1, abs(b)) for (_, a), (_, b) in zip(told, written)), (metric, told, written)
    files = [file for file in (experiment / "trajectories").rglob("*.json") if file.name != "advantages.json"]
    trajectories = [json.load(open(file)) for file in files]
    assert len(files) >= 64 and all(t["conversations"][0]["messages"][-1]["role"] == "assistant" for t in trajectories)
    print(f"{name}: {len(events.Tags()['scalars'])} metrics in TensorBoard, {len(files)} trajectories")
