#!/usr/bin/env python3
"""Writes assets/models/scripted/model.safetensors: random weights of the shapes of its config.json, the same each time.

The model's answers are given, so its weights need not know anything. They are few, so that the prompts of coding agents,
some hundred thousand tokens, are computed in seconds. Needs: pip install numpy safetensors.
"""

import json
import pathlib

import numpy
from safetensors.numpy import save_file

directory = pathlib.Path(__file__).resolve().parents[1] / "assets/models/scripted"
config = json.loads((directory / "config.json").read_text())
rng = numpy.random.default_rng(0)
hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head


def matrix(rows, columns):
    return (rng.standard_normal((rows, columns)) / columns**0.5).astype(numpy.float32)


tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden), "model.norm.weight": numpy.ones(hidden, numpy.float32)}
for number in range(config["num_hidden_layers"]):
    layer = f"model.layers.{number}."
    shapes = {
        "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    tensors |= {f"{layer}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    tensors |= {f"{layer}{name}.weight": numpy.ones(hidden, numpy.float32) for name in ("input_layernorm", "post_attention_layernorm")}
save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
