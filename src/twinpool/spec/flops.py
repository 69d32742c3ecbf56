"""Arithmetic of attention: what one token costs for each token before it.

Knows the shapes of layers; no hardware and no time.
"""

from __future__ import annotations

from twinpool.spec.layer import FullSpec, GqaSpec, MlaSpec, full_of
from twinpool.spec.model import ModelSpec


def flops_per_pair(spec: ModelSpec) -> int:
    """Return the operations for one token and one token before it, all layers of a model.

    Args:
        spec: The model.
    """
    return sum(_pair_flops(mixer) for mixer in map(full_of, spec.layers) if mixer is not None)


def _pair_flops(mixer: FullSpec) -> int:
    """Operations for one query token and one position before it, all heads: scores and sums.

    With an indexer only its own scores grow with the context: attention reads a fixed number of
    positions, and that part is left out.
    """
    if isinstance(mixer, MlaSpec) and mixer.indexer is not None:
        return 2 * mixer.indexer.num_heads * mixer.indexer.width // mixer.indexer.tokens_per_key
    if isinstance(mixer, GqaSpec):
        return 2 * mixer.num_query_heads * (mixer.key_width + mixer.value_width)
    latent = mixer.latent_width + mixer.rope_width
    return 2 * mixer.num_query_heads * (latent + mixer.latent_width)
