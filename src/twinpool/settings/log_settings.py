"""Log settings: how a server was set, from its log, with flags that speak for it or against it.

A flag wins over the log, the log over an assumption; every answer says which it was. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinpool.errors import ConfigError
from twinpool.memory.boots import Boot, RankPools
from twinpool.memory.recover import Recovered
from twinpool.memory.running_cap import SlotStrategy, slots_per_request
from twinpool.settings.model_match import Variant
from twinpool.settings.resolve import SETTINGS, Resolved, to_json
from twinpool.settings.values import Source, Value
from twinpool.units import DType

ASSUMED_STRATEGY = SlotStrategy.EXTRA_BUFFER
IN_LOG = "server_args in the log"


class LogSettings:
    """Answers how a server was set.

    Args:
        boot: The boot that counts.
        pools: The rank whose numbers are shown.
        flags: Settings that were given, by name, as text or parsed.

    Raises:
        ConfigError: If a flag cannot be used.
    """

    def __init__(self, boot: Boot, pools: RankPools, flags: Mapping[str, object]) -> None:
        self._printed = boot.settings
        self._ranks = boot.ranks
        self._pools = pools
        self._flags = {name: SETTINGS[name].read(value) for name, value in flags.items()}

    def flag(self, name: str) -> Any:
        """Return what a flag set, parsed; None when it was not given."""
        return self._flags.get(name)

    def number(self, name: str, printed: str = "") -> Value[int] | None:
        """Return a whole number from a flag or from the server's arguments.

        Args:
            name: The setting.
            printed: Its name among the server's arguments; empty: the same.
        """
        if name in self._flags:
            return Value(int(self._flags[name]), Source.FLAG)
        text = self._printed.get(printed or name, "")
        if text.isascii() and text.isdigit() and len(text) < 16:
            return Value(int(text), Source.MEASURED, IN_LOG)
        return None

    def is_on(self, name: str) -> bool:
        """True when a switch is given, or printed as `True`."""
        return bool(self._flags.get(name, self._printed.get(name, "").lower() == "true"))

    @property
    def replicas(self) -> int:
        """Data parallel replicas that share the requests out; 1 without attention replicas."""
        count = self.number("dp_size")
        return count.value if count and self.is_on("enable_dp_attention") else 1

    def ranks(self) -> Value[int]:
        """Return the tensor parallel ranks of attention."""
        known = self.number("tp", "tp_size")
        if known is not None:
            share = known.value // self.replicas if known.source is Source.MEASURED else known.value
            return Value(max(share, 1), known.source, known.why)
        names = {
            part for rank in self._ranks for part in rank.rank.split() if part.startswith("TP")
        }
        if len(names) > 1:
            return Value(len(names), Source.DERIVED, "tensor parallel ranks in the log")
        return Value(1, Source.ASSUMED, "the log names no ranks")

    def variant(self) -> Variant:
        """Return how the model is laid out, for its exact bytes."""
        stages = self.number("pp", "pp_size")
        return Variant(
            tp=self.ranks().value,
            pp=stages.value if stages else 1,
            kv_dtype=self._dtype("kv_cache_dtype", self._pools.kv.dtype),
            state_dtype=self._dtype("mamba_ssm_dtype", ""),
        )

    def per_request(self) -> Value[int]:
        """Return the slots that a running request reserves, `S`."""
        strategy = self.flag("mamba_radix_cache_strategy")
        has_flag = strategy is not None or self._flags.keys() & {
            "disable_overlap_schedule",
            "disable_radix_cache",
        }
        cap = next(
            (rank.cap for rank in self._ranks if rank.cap and rank.cap.pool == "state"), None
        )
        if cap is not None and cap.slots_per_request and not has_flag:
            return Value(cap.slots_per_request, Source.MEASURED, "the cap line")
        printed = self._printed.get("mamba_radix_cache_strategy", "auto")
        stages = self.number("pp", "pp_size")
        overlap = not self.is_on("disable_overlap_schedule") and not (stages and stages.value > 1)
        cached = not self.is_on("disable_radix_cache")
        if strategy is None and printed != "auto":
            count = slots_per_request(printed, overlap=overlap, prefix_cache=cached)
            return Value(count, Source.DERIVED, f"{printed}, {IN_LOG}")
        name = strategy or ASSUMED_STRATEGY
        count = slots_per_request(name, overlap=overlap, prefix_cache=cached)
        if not cached:
            return Value(count, Source.DERIVED, "the prefix cache is off")
        if strategy is None:
            return Value(
                count,
                Source.ASSUMED,
                f"{name.value}: the log does not say; give --mamba-radix-cache-strategy",
            )
        return Value(count, Source.FLAG, f"--mamba-radix-cache-strategy {name}")

    def drafts(self, recovered: Recovered) -> Value[int]:
        """Return the draft tokens per request whose states stand in the memory, `D`."""
        known = self.number("speculative_num_draft_tokens")
        has_states = recovered.draft_states.high > 0
        if known is not None and (has_states or known.source is Source.FLAG):
            return known
        why = "draft states without their number" if has_states else "no draft states in the log"
        return Value(0, Source.ASSUMED if has_states else Source.MEASURED, why)

    def asked(self) -> Value[int] | None:
        """Return the running requests that were asked for, per replica."""
        known = self.number("max_running_requests")
        if known is not None:
            share = known.value // self.replicas if known.source is Source.MEASURED else known.value
            return Value(max(share, 1), known.source, known.why)
        cap = self._pools.cap
        if cap is not None and cap.asked is not None:
            return Value(cap.asked, Source.MEASURED, "the cap line")
        if cap is None and self._pools.ready is not None:
            why = "in force, and no pool capped it"
            return Value(self._pools.ready.max_running_requests, Source.MEASURED, why)
        return None

    def _dtype(self, name: str, line: str) -> DType | None:
        """Read a dtype from a flag, else from a line or from the server's arguments."""
        if name in self._flags:
            return self._flags[name]  # type: ignore[no-any-return]
        for text in (line, self._printed.get(name, "")):
            if text and text != "auto":
                try:
                    return DType.parse(text)
                except ConfigError:
                    # A storage type such as uint8 says nothing of what is stored.
                    continue
        return None


def settings_line(resolved: Resolved) -> str:
    """Return the line in which a server logs the settings that its boot lines depend on.

    Args:
        resolved: The settings in force.
    """
    shown = ", ".join(
        f"'{printed}': {_literal(resolved.values[name].value)}" for name, printed in LOGGED.items()
    )
    return f"server_args={{{shown}}}"


def _literal(value: object) -> str:
    plain = to_json(value)
    return f"'{plain}'" if isinstance(plain, str) else str(plain)


# Settings that a server's log names, and how the reference engine spells them there.
LOGGED = {
    "page_size": "page_size",
    "mamba_radix_cache_strategy": "mamba_radix_cache_strategy",
    "mamba_full_memory_ratio": "mamba_full_memory_ratio",
    "max_mamba_cache_size": "max_mamba_cache_size",
    "disable_radix_cache": "disable_radix_cache",
    "disable_overlap_schedule": "disable_overlap_schedule",
    "max_running_requests": "max_running_requests",
    "speculative_num_draft_tokens": "speculative_num_draft_tokens",
    "tp": "tp_size",
    "pp": "pp_size",
}
