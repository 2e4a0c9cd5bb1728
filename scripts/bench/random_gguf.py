#!/usr/bin/env python3
"""random_gguf.py SHAPE TARGET TYPE: a GGUF file of a shape of scripts/shapes (Qwen2) with random matrices in blocks.

TYPE is Q4_0, Q8_0, Q4_K or Q6_K; Q4_K_M mixes the last two as llama.cpp does. Such a file measures memory and speed of a
model without its weights. Needs `pip install gguf`."""

import json
import sys

import gguf
import numpy

TYPES = gguf.GGMLQuantizationType
# Byte of the first half-precision number of a block, and how large a value is relative to it.
SCALES = {TYPES.Q4_0: ([0], 4), TYPES.Q8_0: ([0], 64), TYPES.Q4_K: ([0], 256), TYPES.Q6_K: ([208], 1024)}
DEVIATION = 0.02
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"


def main(shape, target, asked):
    shape = json.load(open(shape))
    random = numpy.random.default_rng(0)
    writer = gguf.GGUFWriter(target, "qwen2")
    settings(writer, shape)
    hidden, inner, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    head = hidden // shape["num_attention_heads"]
    kv = head * shape["num_key_value_heads"]

    def matrix(name, rows, columns, more_bits=False):
        kind = TYPES.Q6_K if more_bits and asked == "Q4_K_M" else TYPES["Q4_K" if asked == "Q4_K_M" else asked]
        inputs, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (rows * columns // inputs, size), dtype=numpy.uint8)
        places, range_ = SCALES[kind]
        for place in places:
            scale = numpy.full(len(blocks), DEVIATION / range_, numpy.float16)
            blocks[:, place:place + 2] = scale.view(numpy.uint8).reshape(-1, 2)
        if kind == TYPES.Q4_K:
            blocks[:, 2:4] = numpy.full(len(blocks), 8 * DEVIATION / 256, numpy.float16).view(numpy.uint8).reshape(-1, 2)
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=kind)

    def vector(name, length, value):
        writer.add_tensor(name, numpy.full(length, value, numpy.float32))

    matrix("token_embd.weight", shape["vocab_size"], hidden, more_bits=True)
    if not shape["tie_word_embeddings"]:
        matrix("output.weight", shape["vocab_size"], hidden, more_bits=True)
    vector("output_norm.weight", hidden, 1)
    for layer in range(layers):
        # llama.cpp gives these two more bits in the first and last eighth and in every third layer between
        more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        name = f"blk.{layer}."
        for part, rows in [("q", hidden), ("k", kv), ("v", kv)]:
            matrix(f"{name}attn_{part}.weight", rows, hidden, more_bits=more and part == "v")
            vector(f"{name}attn_{part}.bias", rows, 0)
        matrix(name + "attn_output.weight", hidden, hidden)
        matrix(name + "ffn_gate.weight", inner, hidden)
        matrix(name + "ffn_up.weight", inner, hidden)
        matrix(name + "ffn_down.weight", hidden, inner, more_bits=more)
        vector(name + "attn_norm.weight", hidden, 1)
        vector(name + "ffn_norm.weight", hidden, 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def settings(writer, shape):
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_rope_freq_base(shape["rope_theta"])
    text = [*alphabet(), "he"]  # and a merge, which readers want
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = text + special
    tokens += [f"<|unused {i}|>" for i in range(shape["vocab_size"] - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    unused = len(tokens) - len(text) - len(special)
    writer.add_token_types([1] * len(text) + [3] * len(special) + [5] * unused)
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_chat_template(TEMPLATE)


def alphabet():
    """The characters that stand for bytes in GPT-2's tokenizer."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = (chr(256 + i) for i in range(256 - len(shown)))
    return [chr(byte) if byte in shown else next(hidden) for byte in range(256)]


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
