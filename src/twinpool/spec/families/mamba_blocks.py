"""Parts of configs that several families with Mamba share: layer names and Mamba2 fields.

Knows no family in particular.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import FULL, LINEAR
from twinpool.spec.layer import FeedForwardSpec, LayerSpec, Mamba2Spec

MIXER_WORDS: Mapping[str, str] = {
    LINEAR: LINEAR,
    FULL: FULL,
    "mamba": LINEAR,
    "attention": FULL,
}
"""Old and new names of the two mixers."""


def read_kinds(
    config: ConfigReader,
    fields: Sequence[str],
    words: Mapping[str, str],
    *,
    count: int | None,
) -> tuple[str, ...] | None:
    """Read the list of layer kinds from the one of several fields that is there.

    Args:
        config: The model's fields.
        fields: Names under which the list may stand.
        words: What may stand in the list, and what it means.
        count: How many entries there must be; None: at least one.

    Returns:
        The kinds, first layer to last; None when no field is there.

    Raises:
        UnsupportedModelError: If a list has an unknown word or a wrong length, or two differ.
    """
    kinds: tuple[str, ...] | None = None
    for field in fields:
        listed = config.names(field, known=tuple(words), count=count)
        if listed is None:
            continue
        found = tuple(words[word] for word in listed)
        if kinds not in (None, found):
            raise config.error(field, f"contradicts {fields[0]}", hint="leave one of them out")
        kinds = found
    return kinds


def read_mamba2(config: ConfigReader, *, inner_size: int) -> Mamba2Spec:
    """Read the Mamba2 mixer from the field names that Bamba, Granite 4 and Falcon-H1 share.

    Args:
        config: The model's fields.
        inner_size: Channels of the mixer, which the heads must make up.

    Raises:
        UnsupportedModelError: If a field is missing, or the heads do not make up the channels.

    Source: transformers 5.24, `BambaConfig`, `GraniteMoeHybridConfig`, `FalconH1Config`.
    """
    return mamba2_of(
        config,
        inner_size=inner_size,
        heads_field="mamba_n_heads",
        width_field="mamba_d_head",
        width=config.integer_or_auto("mamba_d_head"),
        groups_field="mamba_n_groups",
        state_width=config.integer("mamba_d_state"),
        conv_width=config.integer("mamba_d_conv"),
    )


def mamba2_of(
    config: ConfigReader,
    *,
    inner_size: int,
    heads_field: str,
    width_field: str,
    width: int | None,
    groups_field: str,
    state_width: int,
    conv_width: int,
) -> Mamba2Spec:
    """Build a Mamba2 mixer whose heads make up a given number of channels.

    Args:
        config: The model's fields.
        inner_size: Channels of the mixer.
        heads_field: The field with the number of heads.
        width_field: The field with the width of a head, for errors.
        width: Elements of a head; None: channels over heads.
        groups_field: The field with the number of groups.
        state_width: State per channel.
        conv_width: Taps of the conv.

    Raises:
        UnsupportedModelError: If heads or groups do not divide, or the width is not what is left.
    """
    heads = config.integer(heads_field)
    if inner_size % heads:
        raise config.error(heads_field, f"is {heads}, which does not divide {inner_size} channels")
    if width is not None and width * heads != inner_size:
        raise config.error(
            width_field,
            f"is {width}, and {heads} heads of it are {width * heads} of {inner_size} channels",
        )
    return Mamba2Spec(
        num_heads=heads,
        head_width=inner_size // heads,
        state_width=state_width,
        num_groups=check_groups(config, groups_field, config.integer(groups_field), heads=heads),
        conv_width=conv_width,
    )


def check_groups(config: ConfigReader, field: str, groups: int, *, heads: int) -> int:
    """Return the number of groups that share B and C.

    Raises:
        UnsupportedModelError: If it does not divide the heads.
    """
    if heads % groups:
        raise config.error(field, f"is {groups}, which does not divide {heads} heads")
    return groups


def read_no_feed_forwards(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Return empty feed-forwards: the mixer is the whole layer."""
    return (FeedForwardSpec(),) * len(layers)
