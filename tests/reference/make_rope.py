"""Makes tests/fixtures/rope.json: what `transformers` computes for the rope settings of config.json files.

    pip install torch transformers
    python tests/reference/make_rope.py
"""

import copy
import json
import pathlib

from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

FIXTURE = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "rope.json"

BASE = dict(
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=1000,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
)
LLAMA3 = dict(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
YARN = dict(factor=4.0, original_max_position_embeddings=32768)

LONG = dict(
    rope_type="longrope",
    rope_theta=10000.0,
    original_max_position_embeddings=4096,
    short_factor=[1.0 + i / 100 for i in range(64)],
    long_factor=[1.0 + i for i in range(64)],
)

CASES = {
    "no rope settings at all": {},
    "default, old layout": dict(rope_theta=1000000.0),
    "default, old layout, null scaling": dict(rope_theta=100000, rope_scaling=None),
    "default, new layout": dict(rope_parameters=dict(rope_type="default", rope_theta=500000.0)),
    "linear, old layout": dict(rope_theta=10000.0, rope_scaling=dict(type="linear", factor=2.5)),
    "linear, new layout": dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "llama3, old layout": dict(rope_theta=500000.0, rope_scaling=dict(rope_type="llama3", **LLAMA3)),
    "llama3, new layout": dict(rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, **LLAMA3)),
    "llama3, narrow heads": dict(
        head_dim=64, rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, **{**LLAMA3, "factor": 8.0})
    ),
    "yarn, old layout": dict(rope_theta=1000000.0, rope_scaling=dict(type="yarn", **YARN)),
    "yarn, new layout": dict(rope_parameters=dict(rope_type="yarn", rope_theta=1000000.0, **YARN)),
    "yarn, original context from the top": dict(
        max_position_embeddings=40960, rope_theta=10000.0, rope_scaling=dict(rope_type="yarn", factor=2.0)
    ),
    "yarn, every setting": dict(
        rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, **YARN, beta_fast=24.0, beta_slow=2.0, truncate=False
        )
    ),
    "yarn, mscale": dict(
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, **YARN, mscale=1.0, mscale_all_dim=0.5)
    ),
    "longrope": dict(rope_parameters=LONG),
    "longrope, every setting": dict(rope_parameters={**LONG, "factor": 16.0}),
    "longrope, attention factor": dict(rope_parameters={**LONG, "attention_factor": 1.25}),
    "yarn, attention factor": dict(
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, **YARN, attention_factor=1.25)
    ),
}


def main():
    fixtures = []
    for name, settings in CASES.items():
        config = {**BASE, **settings}
        kwargs = copy.deepcopy(config)
        rotary = LlamaRotaryEmbedding(AutoConfig.for_model(kwargs.pop("model_type"), **kwargs))
        fixtures.append(
            dict(
                name=name,
                config=config,
                inv_freq=rotary.inv_freq.tolist(),
                attention_factor=float(rotary.attention_scaling),
            )
        )
    FIXTURE.write_text("[\n" + ",\n".join(json.dumps(f) for f in fixtures) + "\n]\n")
    print(f"{FIXTURE.name}: {len(fixtures)} cases")


if __name__ == "__main__":
    main()
