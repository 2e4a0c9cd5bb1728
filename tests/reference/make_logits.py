"""Makes tests/fixtures/models: small random-weight models with the logits that `transformers` computes for them.

    pip install torch transformers
    python tests/reference/make_logits.py [NAME ...]

Each directory is a Hugging Face model with a `reference.safetensors`: prompts `input_ids_0` (i64, T),
`input_ids_1`, ... of different lengths and their logits `logits_0` (f32, T x vocabulary), ... in f32 with eager attention.
With names, only those models are made.
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

MODELS = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "models"
LENGTHS = [1, 7, 33, 90]

SHAPE = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
)

ODD = dict(
    vocab_size=96,
    hidden_size=36,
    intermediate_size=44,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)

CONFIGS = {
    # grouped queries, a head of its own, rope scaling of Llama 3.1
    "llama": LlamaConfig(
        **SHAPE,
        tie_word_embeddings=False,
        rms_norm_eps=1e-5,
        rope_parameters=dict(
            rope_type="llama3",
            rope_theta=10000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    # every bias that Llama can have, one key-value head, linear rope scaling, a tied head, two shards
    "llama-sharded": LlamaConfig(
        **{**SHAPE, "num_key_value_heads": 1},
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=2.0),
    ),
    # biases on q, k and v, a tied head
    "qwen2": Qwen2Config(
        **SHAPE, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1000000.0)
    ),
    # norms on q and k, heads wider than hidden / heads, yarn; its config.json is rewritten in the layout before
    # transformers 5
    "qwen3": Qwen3Config(
        **SHAPE,
        head_dim=16,
        tie_word_embeddings=False,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64
        ),
    ),
    # a window shorter than a block of the cache in every layer, heads that are no whole vectors
    "mistral": MistralConfig(**ODD, head_dim=10, sliding_window=6),
    # a window longer than a block of the cache in the layers from the second on
    "qwen2-window": Qwen2Config(
        **ODD, use_sliding_window=True, sliding_window=41, max_window_layers=1, tie_word_embeddings=True
    ),
    # fused projections, rope on half of each head of 12, LongRoPE
    "phi3": Phi3Config(
        **{**ODD, "num_attention_heads": 3, "num_key_value_heads": 1},
        original_max_position_embeddings=160,
        sliding_window=50,
        rope_parameters=dict(
            rope_type="longrope",
            rope_theta=10000.0,
            partial_rotary_factor=0.5,
            short_factor=[1.0, 1.3, 2.5],
            long_factor=[1.5, 3.0, 9.0],
        ),
    ),
    # a layer without rope, whose window slides; biases of the MLP
    "smollm3": SmolLM3Config(
        **ODD,
        mlp_bias=True,
        no_rope_layers=[1, 0, 1],
        use_sliding_window=True,
        sliding_window=6,
        rope_parameters=dict(rope_type="default", rope_theta=500.0),
    ),
    # every multiplier, every bias
    "granite": GraniteConfig(
        **ODD,
        attention_bias=True,
        mlp_bias=True,
        embedding_multiplier=3.0,
        attention_multiplier=0.25,
        residual_multiplier=0.6,
        logits_scaling=1.7,
    ),
    # norms after attention and MLP, and over all heads of q and k
    "olmo2": Olmo2Config(**ODD),
    # soft caps that bend most scores and logits, windows in every other layer, a tied head
    "gemma2": Gemma2Config(
        **ODD,
        head_dim=10,
        query_pre_attn_scalar=7,
        sliding_window=6,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=4.0,
    ),
    # a rope of its own where the window slides
    "gemma3": Gemma3TextConfig(
        **ODD,
        head_dim=10,
        query_pre_attn_scalar=7,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", rope_theta=100000.0, factor=4.0),
            sliding_attention=dict(rope_type="default", rope_theta=1000.0),
        ),
    ),
    # experts in every layer, whose weights add up to 1
    "qwen3-moe": Qwen3MoeConfig(
        **{**ODD, "num_hidden_layers": 2},
        head_dim=10,
        moe_intermediate_size=20,
        num_experts=5,
        num_experts_per_tok=3,
        norm_topk_prob=True,
    ),
    # experts in the second and third layer, whose weights do not add up to 1; windows, a tied head
    "qwen3-moe-mixed": Qwen3MoeConfig(
        **ODD,
        head_dim=10,
        moe_intermediate_size=12,
        num_experts=5,
        num_experts_per_tok=2,
        mlp_only_layers=[0],
        use_sliding_window=True,
        sliding_window=6,
        tie_word_embeddings=True,
    ),
    # experts with other names, one key-value head
    "mixtral": MixtralConfig(
        **{**ODD, "num_hidden_layers": 2, "intermediate_size": 20, "num_key_value_heads": 1}, num_local_experts=5
    ),
}


SPECIAL = ["<pad>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer():
    """One token a byte: newline, space and the printable ASCII characters but for three, 96 tokens with the special ones."""
    characters = ["\u010a", "\u0120"] + [chr(c) for c in range(0x21, 0x7F) if chr(c) not in "^`~"]
    vocabulary = {token: i for i, token in enumerate(SPECIAL + characters)}
    assert len(vocabulary) == SHAPE["vocab_size"]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|im_end|>", chat_template=CHATML
    )


def randomise(model, generator):
    """Weights large enough that every part shows in the logits; norms around one, biases not zero."""
    gemma = "Gemma" in type(model).__name__
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_((0.0 if gemma else 1.0) + 0.2 * noise)  # Gemma adds 1 to the weight
            elif parameter.dim() == 1:
                parameter.copy_(0.2 * noise)
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_((0.15 if gemma else 0.5) * noise)  # Gemma multiplies by the root of the width
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)


def to_old_layout(path):
    """`rope_parameters` split into `rope_theta` and `rope_scaling`, as files before transformers 5 have it."""
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    scaling["type"] = scaling.pop("rope_type")
    config["rope_scaling"] = scaling
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")


def main():
    for seed, (name, config) in enumerate(CONFIGS.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        directory = MODELS / name
        shutil.rmtree(directory, ignore_errors=True)
        generator = torch.Generator().manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        randomise(model, generator)
        model.save_pretrained(directory, max_shard_size="45KB" if name.endswith("sharded") else "5GB")
        make_tokenizer().save_pretrained(directory)
        if name == "qwen3":
            to_old_layout(directory / "config.json")
        # what a reader of the files gets, not what was in memory
        model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32).eval()
        reference = {}
        for i, length in enumerate(LENGTHS):
            ids = torch.randint(config.vocab_size, (length,), generator=generator)
            with torch.no_grad():
                logits = model(ids[None]).logits[0]
            reference[f"input_ids_{i}"] = ids
            reference[f"logits_{i}"] = logits.contiguous()
        save_file(reference, directory / "reference.safetensors")
        spread = reference[f"logits_{len(LENGTHS) - 1}"].std().item()
        size = sum(f.stat().st_size for f in directory.iterdir())
        print(f"{name}: {size / 1024:.0f} KiB, standard deviation of the logits {spread:.2f}")
        assert load_file(directory / "reference.safetensors").keys() == reference.keys()


if __name__ == "__main__":
    main()
