"""Loading: a checkpoint folder in, a `Decoder` out, one layer in memory twice at a time.

Knows no pools and no requests. Every conversion of names, layouts and dtypes happens here or in a
family's file.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

import torch

from twinpool.errors import ConfigError
from twinpool.kernels.registry import OpTable
from twinpool.kernels.registry import load as load_ops
from twinpool.models import qwen3_5, qwen3_next
from twinpool.models.blocks import pack_block
from twinpool.models.checkpoint import Checkpoint
from twinpool.models.config import DecoderConfig, read_config
from twinpool.models.decoder import Decoder
from twinpool.models.tensors import Manifest, Progress, TensorReader, TensorSource
from twinpool.models.weights import LayerTensors, ReadGatedDelta, centred_norm, read_layer
from twinpool.units import DType

_log = logging.getLogger(__name__)
_TORCH = {DType.FLOAT32: torch.float32, DType.BFLOAT16: torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a family names and lays out its weights.

    Attributes:
        prefixes: Where the decoder may stand in a checkpoint; the first that is there is taken.
        read_gated_delta: Reads a linear mixer.
    """

    prefixes: tuple[str, ...]
    read_gated_delta: ReadGatedDelta


WIRINGS = {
    "qwen3_next": Wiring(qwen3_next.PREFIXES, qwen3_next.read_gated_delta),
    "qwen3_5": Wiring(qwen3_5.PREFIXES, qwen3_5.read_gated_delta),
    "qwen3_5_moe": Wiring(qwen3_5.PREFIXES, qwen3_5.read_gated_delta),
}


def load_model(
    folder: Path,
    *,
    dtype: DType | None = None,
    ops: OpTable | None = None,
    progress: Progress | None = None,
) -> Decoder:
    """Load a Hugging Face checkpoint as it is.

    Args:
        folder: `config.json` beside safetensors, in one file or in shards behind an index.
        dtype: float32 or bfloat16 for the linears; None takes what the config names, and float32
            for float16. Norms, decays and conv taps are float32 always.
        ops: The kernels; None takes the fastest that may serve here.
        progress: Called with bytes read so far and in all.

    Raises:
        ConfigError: If a file is missing, damaged or disagrees with another.
        UnsupportedModelError: If the config is not understood; the message names the field.
    """
    config = _with_dtype(read_config(folder), dtype)
    checkpoint = Checkpoint(folder)
    wiring = WIRINGS[config.family]
    prefix = _prefix(checkpoint, wiring)
    manifest = _note_all(config, prefix, held=checkpoint)
    tied = ("lm_head.weight",) if config.spec.tie_word_embeddings else ()
    total_bytes = manifest.check(checkpoint, tied)
    try:
        reader = TensorReader(checkpoint, total_bytes, progress)
        return _assemble(reader, prefix, config, wiring, ops or load_ops("auto"))
    finally:
        checkpoint.close()


def expected_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor that a checkpoint of this config holds."""
    return _note_all(config, WIRINGS[config.family].prefixes[0], held=()).shapes


def _note_all(config: DecoderConfig, prefix: str, held: Container[str]) -> Manifest:
    """Run the reading code against a manifest."""
    manifest = Manifest(held)
    _read_ends(manifest, prefix, config)
    for layer in range(len(config.spec.layers)):
        _read_layer(manifest, prefix, layer, config, WIRINGS[config.family])
    return manifest


def _assemble(
    reader: TensorReader, prefix: str, config: DecoderConfig, wiring: Wiring, ops: OpTable
) -> Decoder:
    """Read and pack everything, layer by layer."""
    embedding, final_norm, head = _read_ends(reader, prefix, config)
    blocks = [
        pack_block(ops, _read_layer(reader, prefix, layer, config, wiring), config.mlps[layer])
        for layer in range(len(config.spec.layers))
    ]
    packed_head = ops.pack_head(embedding if head is None else head)
    weight_bytes = (
        embedding.nbytes + packed_head.weight_bytes + sum(block.weight_bytes for block in blocks)
    )
    return Decoder(
        config,
        ops,
        embedding=embedding,
        blocks=blocks,
        final_norm=final_norm,
        head=packed_head,
        weight_bytes=weight_bytes,
    )


def _read_ends(
    source: TensorSource, prefix: str, config: DecoderConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Read embedding, final norm and, where it is not tied, the head."""
    shape = (config.spec.vocab_size, config.spec.hidden_size)
    dtype = _TORCH[config.spec.dtype]
    embedding = source.take(f"{prefix}embed_tokens.weight", shape).to(dtype, copy=True)
    final_norm = centred_norm(source, f"{prefix}norm.weight", config.spec.hidden_size)
    if config.spec.tie_word_embeddings:
        return embedding, final_norm, None
    return embedding, final_norm, source.take("lm_head.weight", shape).to(dtype)


def _read_layer(
    source: TensorSource, prefix: str, layer: int, config: DecoderConfig, wiring: Wiring
) -> LayerTensors:
    """Read one layer in the family's way."""
    dtype = _TORCH[config.spec.dtype]
    return read_layer(source, prefix, layer, config, dtype, wiring.read_gated_delta)


def _prefix(checkpoint: Checkpoint, wiring: Wiring) -> str:
    """Return where the decoder stands; the first place when it is nowhere, for the message."""
    for prefix in wiring.prefixes:
        if f"{prefix}embed_tokens.weight" in checkpoint:
            return prefix
    return wiring.prefixes[0]


def _with_dtype(config: DecoderConfig, asked: DType | None) -> DecoderConfig:
    """Return the config with the dtype that linears, rows and conv states will have."""
    named = config.spec.dtype
    if asked is None:
        asked = DType.FLOAT32 if named is DType.FLOAT16 else named
    if asked not in _TORCH:
        raise ConfigError(
            f"weights cannot be kept in {asked.value}", hint="use bfloat16 or float32"
        )
    if asked is not named:
        _log.info("weights are converted from %s to %s", named.value, asked.value)
    return dataclasses.replace(config, spec=dataclasses.replace(config.spec, dtype=asked))
