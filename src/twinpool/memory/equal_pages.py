"""Equal pages: how vLLM cuts one memory into pages that hold KV or a state alike.

Layers are put into groups of equally many; a page holds one block of tokens, or one state, for all
layers of one group. So that a state fits, a block of tokens grows until its KV is as large. Knows
bytes and counts of layers; no pool and no tree.

    full attention    group 0: | block of tokens |
    linear attention  group 1: | state, padded   |   group 2: | state, padded |   ...

Source: vLLM 0.33, `Platform._align_hybrid_block_size`, `_get_kv_cache_groups_uniform_page_size`.
Ours differs where layers of one kind have unlike bytes (an indexer beside latent attention): their
mean counts, and vLLM may pack them more tightly.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.errors import ConfigError
from twinpool.memory.one_budget import OneBudget

# Block sizes are multiples of it on common kernels; with latent attention of the second.
KERNEL_TOKENS = 16
LATENT_KERNEL_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """What pages are cut for, on one rank.

    Attributes:
        row_bytes: One token's KV over all full-attention layers.
        slot_bytes: One state over all linear layers; 0 for a model without.
        num_full_layers: Layers that write KV.
        num_linear_layers: Layers that keep a state.
        has_latent_rows: True with latent attention, whose kernels want larger blocks.
    """

    row_bytes: int
    slot_bytes: int
    num_full_layers: int
    num_linear_layers: int
    has_latent_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """One memory for rows and states.

    Attributes:
        page_tokens: Tokens of a page of rows; hits end on multiples of it.
        budget: What there is, and what a page of rows and a state take of it.
    """

    page_tokens: int
    budget: OneBudget

    @property
    def max_tokens(self) -> int:
        """Tokens that one request can have."""
        return self.budget.max_pages * self.page_tokens

    @property
    def max_slots(self) -> int:
        """States that there can be beside one page of rows."""
        return self.budget.slots(self.budget.total - self.budget.page_cost)


def equal_pages(layers: LayerBytes, rest_bytes: int, *, block_tokens: int) -> SharedMemory:
    """Cut memory into pages of which each holds a block of tokens or a state, for one group.

    Args:
        layers: What they are cut for.
        rest_bytes: All memory for both kinds.
        block_tokens: Tokens of a block before it grows.

    Raises:
        ConfigError: If the model has no KV or no states to put side by side.
        CapacityError: If not even one request fits.
    """
    full, linear = layers.num_full_layers, layers.num_linear_layers
    if not full or not linear or not layers.slot_bytes or not layers.row_bytes:
        raise ConfigError(
            "equal pages are for models with both full and linear attention",
            hint="use --memory static",
        )
    least = LATENT_KERNEL_TOKENS if layers.has_latent_rows else KERNEL_TOKENS
    step = -(-max(block_tokens, least) // least) * least
    # Bytes of a layer are means: `a / full` of KV, `b / linear` of a state.
    tokens = step * -(-layers.slot_bytes * full // (linear * step * layers.row_bytes))
    small, large = sorted((full, linear))
    # Nearly as many of one kind as of the other make one group of each.
    group = large if 2 * large < 3 * small else small
    page_bytes = -(-group * tokens * layers.row_bytes // full)
    return SharedMemory(
        page_tokens=tokens,
        budget=OneBudget(
            total=rest_bytes // page_bytes,
            page_cost=-(-full // group),
            slot_cost=-(-linear // group),
        ),
    )


def one_budget(layers: LayerBytes, rest_bytes: int, *, page_tokens: int) -> SharedMemory:
    """Let rows and states share bytes, without any rounding to pages.

    Args:
        layers: What rows and states take.
        rest_bytes: All memory for both kinds.
        page_tokens: Tokens of a page of rows.

    Raises:
        ConfigError: If the model writes no KV.
        CapacityError: If not even one request fits.
    """
    if not layers.row_bytes:
        raise ConfigError(
            "one budget needs rows, and the model writes none", hint="use --memory static"
        )
    return SharedMemory(
        page_tokens=page_tokens,
        budget=OneBudget(
            total=rest_bytes, page_cost=page_tokens * layers.row_bytes, slot_cost=layers.slot_bytes
        ),
    )
