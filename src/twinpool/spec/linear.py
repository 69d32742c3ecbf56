"""Linear-attention specs: what one layer keeps in a state slot, and its weights.

Every spec answers for one rank: elements of the conv state and of the recurrent state. Frozen
values; knows no config file, no dtype and no memory.

Source: the per-rank state shapes of the reference engine (`configs/mamba_utils.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.spec.full import check_divides


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaSpec:
    """Gated DeltaNet: a conv state and a recurrent state go to the state pool.

    Attributes:
        num_key_heads: Key (and query) heads, `HK`.
        num_value_heads: Value heads, `HV`, a multiple of `HK`.
        key_width: Elements of one key head, `K`.
        value_width: Elements of one value head, `V`.
        conv_width: Taps of the causal conv, `W`; its state holds `W - 1` columns.
    """

    num_key_heads: int
    num_value_heads: int
    key_width: int
    value_width: int
    conv_width: int

    @property
    def conv_channels(self) -> int:
        """Channels of the causal conv: queries, keys and values side by side."""
        return 2 * self.num_key_heads * self.key_width + self.num_value_heads * self.value_width

    def conv_elements(self, tp: int = 1) -> int:
        """Elements of one conv state on one rank."""
        return self.conv_channels // tp * (self.conv_width - 1)

    def recurrent_elements(self, tp: int = 1) -> int:
        """Elements of one recurrent state on one rank."""
        return self.num_value_heads // tp * self.key_width * self.value_width

    def parameters(self, hidden_size: int) -> int:
        """Weights of projections (queries, keys, values, output gate, two gates) and conv."""
        values = self.num_value_heads * self.value_width
        inputs = 2 * self.num_key_heads * self.key_width + 2 * values + 2 * self.num_value_heads
        return hidden_size * (inputs + values) + self.conv_channels * self.conv_width

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallel size that does not split the heads evenly.

        Args:
            tp: Ranks, 1 or more.

        Raises:
            ConfigError: If key or value heads do not divide by tp.
        """
        check_divides("linear_num_key_heads", self.num_key_heads, tp)
        check_divides("linear_num_value_heads", self.num_value_heads, tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaSpec:
    """Kimi Delta Attention: as Gated DeltaNet, with a decay per key channel.

    Attributes:
        num_heads: Heads of queries, keys and values alike.
        width: Elements of one head, key and value alike.
        conv_width: Taps of the causal convs of queries, keys and values.
        num_full_gates: How many of the forget and the output gate are one full matrix; the others
            go through a rank of `width`.
    """

    num_heads: int
    width: int
    conv_width: int
    num_full_gates: int = 0

    @property
    def conv_channels(self) -> int:
        """Channels of the three causal convs together."""
        return 3 * self.num_heads * self.width

    def conv_elements(self, tp: int = 1) -> int:
        """Elements of one conv state on one rank."""
        return self.conv_channels // tp * (self.conv_width - 1)

    def recurrent_elements(self, tp: int = 1) -> int:
        """Elements of one recurrent state on one rank."""
        return self.num_heads // tp * self.width * self.width

    def parameters(self, hidden_size: int) -> int:
        """Weights of projections, the forget, output and step gates, and the convs."""
        inner = self.num_heads * self.width
        gates = self.num_full_gates * hidden_size * inner + hidden_size * self.num_heads
        gates += (2 - self.num_full_gates) * self.width * (hidden_size + inner)
        return hidden_size * 4 * inner + gates + self.conv_channels * self.conv_width

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallel size that does not split the heads (`ConfigError`)."""
        check_divides("linear attention num_heads", self.num_heads, tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Spec:
    """Mamba2: a conv over inputs, B and C, and one state matrix per head.

    Attributes:
        num_heads: Heads.
        head_width: Elements of one head, `P`.
        state_width: State per channel, `N`.
        num_groups: Groups that share B and C, `G`.
        conv_width: Taps of the causal conv, `W`.
    """

    num_heads: int
    head_width: int
    state_width: int
    num_groups: int
    conv_width: int

    @property
    def inner_size(self) -> int:
        """Channels of the mixer."""
        return self.num_heads * self.head_width

    def groups(self, tp: int = 1) -> int:
        """Groups over all ranks; they are replicated so that each rank has at least one."""
        return self.num_groups if self.num_groups % tp == 0 else tp

    def conv_elements(self, tp: int = 1) -> int:
        """Elements of one conv state on one rank."""
        channels = self.inner_size + 2 * self.groups(tp) * self.state_width
        return channels // tp * (self.conv_width - 1)

    def recurrent_elements(self, tp: int = 1) -> int:
        """Elements of one recurrent state on one rank."""
        return self.num_heads // tp * self.head_width * self.state_width

    def parameters(self, hidden_size: int) -> int:
        """Weights of both projections and the conv."""
        shared = 2 * self.num_groups * self.state_width
        inputs = 2 * self.inner_size + shared + self.num_heads
        return hidden_size * (inputs + self.inner_size) + self.conv_width * (
            self.inner_size + shared
        )

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallel size that does not split the heads.

        Args:
            tp: Ranks, 1 or more.

        Raises:
            ConfigError: If heads do not divide by tp, or groups neither divide nor replicate.
        """
        check_divides("mamba heads", self.num_heads, tp)
        if self.num_groups > tp:
            check_divides("mamba groups", self.num_groups, tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1Spec:
    """Mamba-1: a conv over the inputs alone, and a state per channel.

    Attributes:
        inner_size: Channels of the mixer.
        state_width: State per channel, `N`.
        conv_width: Taps of the causal conv, `W`.
        step_rank: Rank of the step-size projection.
    """

    inner_size: int
    state_width: int
    conv_width: int
    step_rank: int

    def conv_elements(self, tp: int = 1) -> int:
        """Elements of one conv state on one rank."""
        return self.inner_size // tp * (self.conv_width - 1)

    def recurrent_elements(self, tp: int = 1) -> int:
        """Elements of one recurrent state on one rank."""
        return self.inner_size // tp * self.state_width

    def parameters(self, hidden_size: int) -> int:
        """Weights of the projections, the conv and the state matrix."""
        selection = self.step_rank + 2 * self.state_width
        per_channel = 3 * hidden_size + selection + self.step_rank
        return self.inner_size * (per_channel + self.conv_width + self.state_width)

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallel size that does not split the channels (`ConfigError`)."""
        check_divides("mamba intermediate size", self.inner_size, tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningSpec:
    """Lightning attention: a matrix state per head with a fixed decay, and no conv.

    Attributes:
        num_heads: Heads.
        width: Elements of one head, key and value alike.
    """

    num_heads: int
    width: int

    def conv_elements(self, tp: int = 1) -> int:
        """Always 0: there is no conv."""
        return 0

    def recurrent_elements(self, tp: int = 1) -> int:
        """Elements of one recurrent state on one rank."""
        return self.num_heads // tp * self.width * self.width

    def parameters(self, hidden_size: int) -> int:
        """Weights of queries, keys, values, output gate and output."""
        return hidden_size * 5 * self.num_heads * self.width

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallel size that does not split the heads (`ConfigError`)."""
        check_divides("num_attention_heads", self.num_heads, tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvSpec:
    """A short gated conv and nothing recurrent: the slot holds its last columns alone.

    Attributes:
        num_channels: Channels of the conv.
        conv_width: Taps of the causal conv, `W`.
    """

    num_channels: int
    conv_width: int

    def conv_elements(self, tp: int = 1) -> int:
        """Elements of one conv state on one rank."""
        return self.num_channels // tp * (self.conv_width - 1)

    def recurrent_elements(self, tp: int = 1) -> int:
        """Always 0."""
        return 0

    def parameters(self, hidden_size: int) -> int:
        """Weights of both projections and the conv."""
        return self.num_channels * (4 * hidden_size + self.conv_width)

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallel size that does not split the channels (`ConfigError`)."""
        check_divides("conv channels", self.num_channels, tp)
