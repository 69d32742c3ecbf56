"""The demo model's weights: seeded draws, shaped so that an untrained model writes words.

Knows nothing of files or of running a model. Two residual channels that no layer writes carry
constants from the embedding to the output head:

    channel 0   the same in every token  x  column 0 of the head  =  a bias for every output token
    channel 1   set in word tokens only  x  column 1 of the head  =  an answer ends after a word

The bias leaves only the words and the end of the turn likely; which word comes is decided by the
other channels, that is by everything the layers have read.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

_SEED = 20_240_607
_BIAS_CHANNEL = 0
_WORD_CHANNEL = 1
_NUM_CHANNELS = 2

# Of the energy in the residual stream about half is constant: enough for a steady bias, and the
# rest still turns the logits.
_BIAS_LEVEL = 9.0
_WORD_LEVEL = 4.0
_EMBEDDING_STD = 0.35
_MIXER_STD = 0.7
_MLP_STD = 0.7
_LOGIT_STD = 2.0
_AGAINST_REPEAT = 0.3
_END_AFTER_WORD = 2.55
_NEVER = -60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoShape:
    """Sizes of the demo model; the names are those of the HF config."""

    vocab_size: int
    hidden_size: int = 256
    intermediate_size: int = 256
    num_hidden_layers: int = 8
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    max_position_embeddings: int = 32768

    @property
    def layer_types(self) -> list[str]:
        """The kind of every layer: one in `full_attention_interval` is full attention."""
        return [
            "linear_attention" if (index + 1) % self.full_attention_interval else "full_attention"
            for index in range(self.num_hidden_layers)
        ]

    def config(self, *, eos_token_ids: Sequence[int]) -> dict[str, Any]:
        """Return the HF `config.json` of the model.

        Args:
            eos_token_ids: The end tokens; the first stands in the config.
        """
        names = (name for name in self.__slots__)
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            **{name: getattr(self, name) for name in names},
            "layer_types": self.layer_types,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_output_gate": True,
            "tie_word_embeddings": False,
            "initializer_range": 0.02,
            "use_cache": True,
            "dtype": "float32",
            "mamba_ssm_dtype": "float32",
            "eos_token_id": eos_token_ids[0],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 100_000.0,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [3, 3, 2],
            },
        }


def build_weights(shape: DemoShape, *, words: Sequence[int], end: int) -> dict[str, FloatArray]:
    """Draw all tensors of the model.

    Args:
        shape: The sizes.
        words: Token ids that an answer is made of.
        end: Token id that ends a turn.

    Returns:
        New float32 arrays by their HF name; the same every time.

    Cost:
        About 0.2 s and 20 MB.
    """
    tensors = {
        "model.embed_tokens.weight": _embedding(shape, words),
        "model.norm.weight": np.zeros(shape.hidden_size, np.float32),
    }
    for index, kind in enumerate(shape.layer_types):
        prefix = f"model.layers.{index}"
        mixer = _linear_attention if kind == "linear_attention" else _full_attention
        tensors.update(mixer(shape, prefix))
        tensors.update(_mlp(shape, prefix))
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = np.zeros(shape.hidden_size, np.float32)
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = _head(shape, embedding, words, end)
    return tensors


def _normal(name: str, size: tuple[int, ...], std: float) -> FloatArray:
    # One stream per tensor, so that adding a tensor leaves the others as they are.
    stream = np.random.Generator(np.random.Philox(key=_SEED, counter=zlib.crc32(name.encode())))
    return stream.standard_normal(size, np.float32) * np.float32(std)


def _projection(name: str, out_width: int, in_width: int, gain: float = 1.0) -> FloatArray:
    return _normal(name, (out_width, in_width), gain / float(np.sqrt(in_width)))


def _reader(name: str, out_width: int, hidden: int, gain: float = 1.0) -> FloatArray:
    # Layers do not see the constant channels, which would drown what differs between texts.
    weight = _projection(name, out_width, hidden, gain)
    weight[:, :_NUM_CHANNELS] = 0.0
    return weight


def _writer(name: str, hidden: int, in_width: int, gain: float) -> FloatArray:
    # Layers do not write the constant channels.
    weight = _projection(name, hidden, in_width, gain)
    weight[:_NUM_CHANNELS] = 0.0
    return weight


def _embedding(shape: DemoShape, words: Sequence[int]) -> FloatArray:
    name = "model.embed_tokens.weight"
    table = _normal(name, (shape.vocab_size, shape.hidden_size), _EMBEDDING_STD)
    table[:, _BIAS_CHANNEL] = _BIAS_LEVEL
    table[:, _WORD_CHANNEL] = 0.0
    table[words, _WORD_CHANNEL] = _WORD_LEVEL
    return table


def _head(shape: DemoShape, embedding: FloatArray, words: Sequence[int], end: int) -> FloatArray:
    width = shape.hidden_size
    head = _projection("lm_head.weight", shape.vocab_size, width, _LOGIT_STD)
    # A word is pushed away from following itself.
    head -= _AGAINST_REPEAT * embedding
    head[:, :_NUM_CHANNELS] = 0.0
    head[:, _BIAS_CHANNEL] = _NEVER / 10
    head[words, _BIAS_CHANNEL] = 0.0
    head[end, _BIAS_CHANNEL] = 0.0
    head[end, _WORD_CHANNEL] = _END_AFTER_WORD
    return head


def _linear_attention(shape: DemoShape, prefix: str) -> dict[str, FloatArray]:
    name = f"{prefix}.linear_attn"
    hidden, heads = shape.hidden_size, shape.linear_num_value_heads
    keys = shape.linear_num_key_heads * shape.linear_key_head_dim
    values = heads * shape.linear_value_head_dim
    channels = 2 * keys + values
    # Head h forgets over 16, 64, 256, 1024 tokens: near and far context both turn the answer.
    rates = (4.0 ** -np.arange(2, 2 + heads)).astype(np.float32)
    return {
        f"{name}.in_proj_qkv.weight": _reader(f"{name}.qkv", channels, hidden),
        f"{name}.in_proj_z.weight": _reader(f"{name}.z", values, hidden),
        f"{name}.in_proj_b.weight": _reader(f"{name}.b", heads, hidden),
        f"{name}.in_proj_a.weight": _reader(f"{name}.a", heads, hidden, 0.5),
        f"{name}.conv1d.weight": _normal(
            f"{name}.conv", (channels, 1, shape.linear_conv_kernel_dim), 0.5
        ),
        f"{name}.dt_bias": np.log(np.expm1(rates)),
        f"{name}.A_log": np.zeros(heads, np.float32),
        f"{name}.norm.weight": np.ones(shape.linear_value_head_dim, np.float32),
        f"{name}.out_proj.weight": _writer(f"{name}.out", hidden, values, 2 * _MIXER_STD),
    }


def _full_attention(shape: DemoShape, prefix: str) -> dict[str, FloatArray]:
    name = f"{prefix}.self_attn"
    hidden = shape.hidden_size
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    return {
        f"{name}.q_proj.weight": _reader(f"{name}.q", 2 * queries, hidden),
        f"{name}.k_proj.weight": _reader(f"{name}.k", keys, hidden),
        f"{name}.v_proj.weight": _reader(f"{name}.v", keys, hidden),
        # Norm weights count from 1: sharper than uniform, so that attention picks.
        f"{name}.q_norm.weight": np.full(shape.head_dim, 1.0, np.float32),
        f"{name}.k_norm.weight": np.zeros(shape.head_dim, np.float32),
        f"{name}.o_proj.weight": _writer(f"{name}.o", hidden, queries, 4 * _MIXER_STD),
    }


def _mlp(shape: DemoShape, prefix: str) -> dict[str, FloatArray]:
    name = f"{prefix}.mlp"
    hidden, inner = shape.hidden_size, shape.intermediate_size
    return {
        f"{name}.gate_proj.weight": _reader(f"{name}.gate", inner, hidden),
        f"{name}.up_proj.weight": _reader(f"{name}.up", inner, hidden),
        f"{name}.down_proj.weight": _writer(f"{name}.down", hidden, inner, 2 * _MLP_STD),
    }
