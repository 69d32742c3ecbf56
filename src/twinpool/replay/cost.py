"""The cost model: how long a step takes on given hardware, from the model's geometry.

Prefill is arithmetic, with the quadratic part of attention; decode is memory traffic of weights,
rows and states; both share a step. Rates that a person gives replace what is worked out. Every
number says whether it was assumed, derived or given. Knows no scheduler and no clock.

Source: the usual roofline of transformer inference; the efficiencies are assumptions, named so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from twinpool.errors import ConfigError
from twinpool.settings.values import Source, Value
from twinpool.spec.flops import flops_per_pair
from twinpool.spec.geometry import Geometry
from twinpool.spec.hardware import Hardware
from twinpool.spec.layer import FeedForwardSpec
from twinpool.spec.model import ModelSpec

ASSUMED_PREFILL_EFFICIENCY = 0.45
ASSUMED_BANDWIDTH_EFFICIENCY = 0.75
ASSUMED_STEP_OVERHEAD_S = 0.004
# The rates of the model in whose terms the published collapse of a split has been retold.
NEUTRAL_PREFILL_RATE = 30_000.0
NEUTRAL_DECODE_BASE_S = 0.012
NEUTRAL_DECODE_PER_REQUEST_S = 0.0005


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one request that a step computes.

    Attributes:
        start: Tokens before it.
        num_tokens: Tokens of it.
    """

    start: int
    num_tokens: int


class StepCost(Protocol):
    """Says how long a step takes."""

    @property
    def terms(self) -> dict[str, Value[object]]:
        """The numbers in force by name, each with how it was got."""
        ...

    def prefill_s(self, spans: Sequence[Span]) -> float:
        """Seconds to compute parts of prompts.

        Args:
            spans: One for each prompt in the step; empty costs nothing.
        """
        ...

    def decode_s(self, num_requests: int, context_tokens: int) -> float:
        """Seconds in which every decoding request gets one token.

        Args:
            num_requests: Requests that decode; 0 costs nothing.
            context_tokens: Tokens before the new ones, over all of them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRates:
    """A step in terms of rates: tokens per second of prefill, a base and a share per decode.

    Attributes:
        prefill_tokens_per_s: Prompt tokens per second.
        decode_base_s: Seconds of a decode step before any request.
        decode_per_request_s: Seconds that each decoding request adds.
        given: Names of the rates that a person gave; the others are assumed.
    """

    prefill_tokens_per_s: float
    decode_base_s: float
    decode_per_request_s: float
    given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name, rate, is_zero_allowed in (
            ("--prefill-rate", self.prefill_tokens_per_s, False),
            ("--decode-base-ms", self.decode_base_s, True),
            ("--decode-per-request-ms", self.decode_per_request_s, True),
        ):
            if not 0 <= rate < float("inf") or (rate == 0 and not is_zero_allowed):
                raise ConfigError(f"{name} is {rate:g}", hint="use a finite number above 0")
        if self.decode_base_s + self.decode_per_request_s <= 0:
            raise ConfigError("a decode step takes no time", hint="raise --decode-base-ms")

    @property
    def terms(self) -> dict[str, Value[object]]:
        """The rates, each with how it was got."""
        rates = {
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "decode_base_s": self.decode_base_s,
            "decode_per_request_s": self.decode_per_request_s,
        }
        return {
            name: Value(rate, Source.FLAG if name in self.given else Source.ASSUMED)
            for name, rate in rates.items()
        }

    def prefill_s(self, spans: Sequence[Span]) -> float:
        """Seconds to compute parts of prompts; see `StepCost`."""
        return sum(span.num_tokens for span in spans) / self.prefill_tokens_per_s

    def decode_s(self, num_requests: int, context_tokens: int) -> float:
        """Seconds in which every decoding request gets one token; see `StepCost`."""
        if not num_requests:
            return 0.0
        return self.decode_base_s + self.decode_per_request_s * num_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A step in terms of arithmetic and traffic on one rank of several alike.

    Attributes:
        spec: The model.
        geometry: Bytes of a row and a slot on one rank.
        hardware: The GPU of a rank; its peak rate and bandwidth must be known.
        weight_itemsize: Bytes of one weight.
        prefill_efficiency: Part of the peak rate that prefill reaches.
        bandwidth_efficiency: Part of the bandwidth that decode reaches.
        overhead_s: Seconds of a step beside both.
    """

    spec: ModelSpec
    geometry: Geometry
    hardware: Hardware
    weight_itemsize: float
    prefill_efficiency: float = ASSUMED_PREFILL_EFFICIENCY
    bandwidth_efficiency: float = ASSUMED_BANDWIDTH_EFFICIENCY
    overhead_s: float = ASSUMED_STEP_OVERHEAD_S
    _flops_per_s: float = field(init=False, repr=False, default=0.0)
    _bytes_per_s: float = field(init=False, repr=False, default=0.0)
    _flops_per_token: int = field(init=False, repr=False, default=0)
    _flops_per_pair: int = field(init=False, repr=False, default=0)
    _dense_bytes: float = field(init=False, repr=False, default=0.0)
    _touched: dict[int, float] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        peak, bandwidth = self.hardware.peak_bf16_flops, self.hardware.bandwidth_bytes_per_s
        if peak is None or bandwidth is None:
            raise ConfigError(
                f"the rates of {self.hardware.name} are not known",
                hint="give --prefill-rate, --decode-base-ms and --decode-per-request-ms",
            )
        ranks = self.geometry.tp * self.geometry.pp
        dense = self.spec.active_parameters - _routed(self.spec, active=True)
        for name, value in (
            ("_flops_per_s", peak * self.prefill_efficiency * ranks),
            ("_bytes_per_s", bandwidth * self.bandwidth_efficiency),
            ("_flops_per_token", 2 * self.spec.active_parameters),
            ("_flops_per_pair", flops_per_pair(self.spec)),
            ("_dense_bytes", dense * self.weight_itemsize / ranks),
        ):
            object.__setattr__(self, name, value)

    @property
    def terms(self) -> dict[str, Value[object]]:
        """What the predictions are made of."""
        catalog = (Source.CATALOG, self.hardware.name)
        return {
            "peak_flops_per_s": Value(self.hardware.peak_bf16_flops, *catalog),
            "bandwidth_bytes_per_s": Value(self.hardware.bandwidth_bytes_per_s, *catalog),
            "prefill_efficiency": Value(self.prefill_efficiency, Source.ASSUMED),
            "bandwidth_efficiency": Value(self.bandwidth_efficiency, Source.ASSUMED),
            "step_overhead_s": Value(self.overhead_s, Source.ASSUMED),
            "prefill_tokens_per_s": Value(
                round(self._flops_per_s / self._flops_per_token), Source.DERIVED, "short prompts"
            ),
            "active_parameters": Value(self.spec.active_parameters, Source.DERIVED),
        }

    def prefill_s(self, spans: Sequence[Span]) -> float:
        """Seconds to compute parts of prompts; see `StepCost`."""
        tokens = sum(span.num_tokens for span in spans)
        if not tokens:
            return 0.0
        # Token `i` of a prompt attends to `i + 1` positions.
        pairs = sum(
            span.num_tokens * span.start + span.num_tokens * (span.num_tokens + 1) // 2
            for span in spans
        )
        flops = tokens * self._flops_per_token + pairs * self._flops_per_pair
        return self.overhead_s + flops / self._flops_per_s

    def decode_s(self, num_requests: int, context_tokens: int) -> float:
        """Seconds in which every decoding request gets one token; see `StepCost`."""
        if not num_requests:
            return 0.0
        ranks = self.geometry.tp * self.geometry.pp
        if num_requests not in self._touched:
            self._touched[num_requests] = _touched(self.spec, num_requests)
        touched = self._touched[num_requests] * self.weight_itemsize / ranks
        states = 2 * num_requests * self.geometry.slot_bytes
        moved = self._dense_bytes + touched + states + context_tokens * self.geometry.row_bytes
        arithmetic = num_requests * self._flops_per_token / self._flops_per_s
        return self.overhead_s + max(moved / self._bytes_per_s, arithmetic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overridden:
    """A step in terms of arithmetic and traffic, but for the half whose rates a person gave.

    Attributes:
        predicted: What holds where nothing is given.
        prefill_tokens_per_s: Prompt tokens per second; None: as predicted.
        decode: Seconds of a decode step before any request, and what each adds; None: as
            predicted.
    """

    predicted: Roofline
    prefill_tokens_per_s: float | None = None
    decode: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.decode is not None and sum(self.decode) <= 0:
            raise ConfigError("a decode step takes no time", hint="raise --decode-base-ms")

    @property
    def terms(self) -> dict[str, Value[object]]:
        """What was given in place of what was predicted."""
        terms = self.predicted.terms
        if self.prefill_tokens_per_s is not None:
            terms["prefill_tokens_per_s"] = Value(self.prefill_tokens_per_s, Source.FLAG)
        if self.decode is not None:
            del terms["bandwidth_bytes_per_s"], terms["bandwidth_efficiency"]
            for name, rate in zip(
                ("decode_base_s", "decode_per_request_s"), self.decode, strict=True
            ):
                terms[name] = Value(rate, Source.FLAG)
        return terms

    def prefill_s(self, spans: Sequence[Span]) -> float:
        """Seconds to compute parts of prompts; see `StepCost`."""
        if self.prefill_tokens_per_s is None:
            return self.predicted.prefill_s(spans)
        return sum(span.num_tokens for span in spans) / self.prefill_tokens_per_s

    def decode_s(self, num_requests: int, context_tokens: int) -> float:
        """Seconds in which every decoding request gets one token; see `StepCost`."""
        if self.decode is None:
            return self.predicted.decode_s(num_requests, context_tokens)
        base_s, per_request_s = self.decode
        return base_s + per_request_s * num_requests if num_requests else 0.0


def _routed(spec: ModelSpec, *, active: bool) -> int:
    return sum(
        (ff.experts_per_token if active else ff.num_experts) * _expert(ff, spec.hidden_size)
        for ff in spec.feed_forwards
    )


def _touched(spec: ModelSpec, num_requests: int) -> float:
    """Weights of the experts that some token of the batch takes, with even routing."""
    total = 0.0
    for ff in spec.feed_forwards:
        if ff.num_experts:
            missed = (1 - ff.experts_per_token / ff.num_experts) ** num_requests
            total += ff.num_experts * (1 - missed) * _expert(ff, spec.hidden_size)
    return total


def _expert(ff: FeedForwardSpec, hidden_size: int) -> int:
    return ff.matrices * (ff.expert_input_width or hidden_size) * ff.expert_width
