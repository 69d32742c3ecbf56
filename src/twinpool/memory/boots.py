"""Boots: the lines of a log put together, per start of a server and per rank.

A log holds several boots after restarts, and several ranks of one boot in any order. Knows no file;
`memory.boot_reader` reads the single lines and `memory.recover` does the arithmetic.

    log --> boot 1 --> TP0: state line, KV line, [draft's KV line], cap line
        |          `-> TP1: ...
        `-> boot 2 (the last one that is complete counts)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from twinpool.errors import TraceError
from twinpool.memory.boot_reader import (
    CapLine,
    Finding,
    KvLine,
    ReadyLine,
    RefusedLine,
    ResizedLine,
    SettingsLine,
    StateLine,
    read_line,
)

LOOKED_FOR = (
    "Mamba Cache is allocated. max_mamba_cache_size: …",
    "KV Cache is allocated. dtype: …, #tokens: …",
    "max_running_requests is capped to …",
)
_NUMBER = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPools:
    """What one rank says of its pools in one boot.

    Attributes:
        rank: As printed, such as `DP0 TP1`; empty without one.
        line: Where its first line is, from 1.
        state: The state pool; None without such a line.
        kv: The KV pool.
        drafts: KV pools of draft models.
        side_pools: KV pools of other kinds, such as those of sliding windows.
        resized: The KV pool after graph capture; None where it was not cut down.
        cap: The last line that caps running requests; None without one.
        ready: The summary of the scheduler; only the first rank prints it.
    """

    rank: str
    line: int
    state: StateLine | None
    kv: KvLine
    drafts: tuple[KvLine, ...] = ()
    side_pools: tuple[KvLine, ...] = ()
    resized: ResizedLine | None = None
    cap: CapLine | None = None
    ready: ReadyLine | None = None

    @property
    def kv_tokens(self) -> int:
        """Rows that serve: those after graph capture where the pool was cut down."""
        return self.resized.tokens if self.resized else self.kv.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """One start of a server.

    Attributes:
        line: Where its first line is, from 1.
        ranks: The ranks with a KV line, in the order of their numbers.
        incomplete: Ranks whose KV line is missing, or whose state line is where others have one.
        settings: What the server's arguments say, by setting name.
    """

    line: int
    ranks: tuple[RankPools, ...]
    incomplete: tuple[str, ...]
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BootLog:
    """All that a log says of pools.

    Attributes:
        boot: The last complete boot: the one that counts.
        num_boots: Boots in the log, incomplete ones included.
        notes: What a reader should know of how the log was read.
    """

    boot: Boot
    num_boots: int
    notes: tuple[str, ...]


def read_boot_log(lines: Iterable[str], path: str) -> BootLog:
    """Find the pools of a server in its log.

    Args:
        lines: The log; read once, never kept.
        path: Its name, for errors.

    Raises:
        TraceError: If there is no complete pair of lines; the message says what was looked for.
    """
    reading = _Reading()
    for number, line in enumerate(lines, start=1):
        reading.has_vllm = reading.has_vllm or "GPU KV cache size:" in line
        for rank, finding in read_line(line):
            reading.add(number, rank, finding)
    drafts = [draft for draft in reading.boots if draft.ranks]
    complete = [boot for boot in (draft.finished() for draft in drafts) if boot.ranks]
    if not complete:
        raise _nothing_found(path, reading, drafts)
    boot = complete[-1]
    return BootLog(
        boot=boot,
        num_boots=len(drafts),
        notes=tuple(_notes(boot, [draft.line for draft in drafts])),
    )


@dataclass(slots=True)
class _Rank:
    """One rank of one boot while it is read."""

    line: int
    state: StateLine | None = None
    kv: KvLine | None = None
    drafts: list[KvLine] = field(default_factory=list)
    side_pools: list[KvLine] = field(default_factory=list)
    resized: ResizedLine | None = None
    cap: CapLine | None = None
    ready: ReadyLine | None = None

    def begins_anew(self, finding: Finding) -> bool:
        """True when a rank that said all this would say `finding` only after a restart."""
        if isinstance(finding, StateLine):
            return self.state is not None or self.kv is not None
        if isinstance(finding, KvLine) and finding.is_main and self.kv is not None:
            # A draft model's pool has as many rows as the model's own, and comes before the
            # scheduler is ready.
            return self.ready is not None or finding.tokens != self.kv.tokens
        return False

    def add(self, finding: Finding) -> None:
        if isinstance(finding, StateLine):
            self.state = finding
        elif isinstance(finding, KvLine):
            self._add_kv(finding)
        elif isinstance(finding, ResizedLine):
            self.resized = self.resized if finding.is_draft else finding
        elif isinstance(finding, CapLine):
            self.cap = _last_cap(self.cap, finding)
        elif isinstance(finding, ReadyLine):
            self.ready = finding

    def _add_kv(self, line: KvLine) -> None:
        if not line.is_main:
            self.side_pools.append(line)
        elif self.kv is None:
            self.kv = line
        else:
            self.drafts.append(line)

    def finished(self, rank: str) -> RankPools | None:
        if self.kv is None:
            return None
        return RankPools(
            rank=rank,
            line=self.line,
            state=self.state,
            kv=self.kv,
            drafts=tuple(self.drafts),
            side_pools=tuple(self.side_pools),
            resized=self.resized,
            cap=self.cap,
            ready=self.ready,
        )


@dataclass(slots=True)
class _Boot:
    """One boot while it is read."""

    line: int
    settings: dict[str, str] = field(default_factory=dict)
    ranks: dict[str, _Rank] = field(default_factory=dict)

    def finished(self) -> Boot:
        has_state = any(rank.state and rank.kv for rank in self.ranks.values())
        # A state line without any KV line after it is a boot that broke off.
        broke_off = not has_state and any(rank.state for rank in self.ranks.values())
        ranks: list[RankPools] = []
        incomplete: list[str] = []
        for name in sorted(self.ranks, key=_natural):
            pools = self.ranks[name].finished(name)
            if pools is None or (has_state and pools.state is None) or broke_off:
                incomplete.append(name)
            else:
                ranks.append(pools)
        return Boot(
            line=self.line,
            ranks=tuple(ranks),
            incomplete=tuple(incomplete),
            settings=MappingProxyType(self.settings),
        )


class _Reading:
    """All boots of a log while it is read."""

    def __init__(self) -> None:
        self.boots: list[_Boot] = []
        self.refused: RefusedLine | None = None
        self.has_vllm = False

    def add(self, number: int, rank: str, finding: Finding) -> None:
        if isinstance(finding, RefusedLine):
            self.refused = finding
            return
        if isinstance(finding, SettingsLine):
            if not self.boots or self.boots[-1].ranks:
                self.boots.append(_Boot(line=number))
            self.boots[-1].settings.update(finding.values)
            return
        known = self.boots[-1].ranks.get(rank) if self.boots else None
        if not self.boots or (known is not None and known.begins_anew(finding)):
            # Until new arguments are printed, those of the boot before are the best guess.
            settings = dict(self.boots[-1].settings) if self.boots else {}
            self.boots.append(_Boot(line=number, settings=settings))
            known = None
        if known is None:
            known = self.boots[-1].ranks.setdefault(rank, _Rank(line=number))
        known.add(finding)


def _last_cap(before: CapLine | None, cap: CapLine) -> CapLine:
    """Take the last cap; one that does not say which pool set it keeps what is known of that."""
    if before is None or cap.pool:
        return cap
    return replace(before, value=cap.value)


def _natural(rank: str) -> tuple[tuple[int, str], ...]:
    """Sort `TP2` before `TP10`."""
    parts = _NUMBER.split(rank)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


def _notes(boot: Boot, lines: list[int]) -> Iterable[str]:
    if len(lines) > 1:
        later = sum(line > boot.line for line in lines)
        yield (
            f"the log holds {len(lines)} boots; the last complete one counts, from line "
            f"{boot.line}" + (f"; {later} later broke off" if later else "")
        )
    if boot.incomplete:
        names = ", ".join(name or "(no rank)" for name in boot.incomplete)
        yield f"lines are missing for {names}: those ranks are left out"
    sides = {line.label for rank in boot.ranks for line in rank.side_pools}
    for label in sorted(sides):
        yield f"the {label} KV pool is beside the two pools and is left out of the arithmetic"
    if any(rank.kv.is_upper_bound and rank.resized is None for rank in boot.ranks):
        yield (
            "the KV line is an upper bound (sized after graph capture), and the line with the "
            "final size is missing: the pool that serves may be smaller"
        )
    if len(boot.ranks) > 1:
        yield _agreement(boot)


def _agreement(boot: Boot) -> str:
    first, *others = boot.ranks
    name = first.rank or "(no rank)"
    for other in others:
        for what, ours, theirs in (
            ("state line", first.state, other.state),
            ("KV line", (first.kv, first.resized), (other.kv, other.resized)),
            ("draft KV line", first.drafts, other.drafts),
        ):
            if ours != theirs:
                return f"warning: ranks disagree: {name} and {other.rank} differ in their {what}"
    return f"{len(boot.ranks)} ranks agree; all numbers are per rank"


def _nothing_found(path: str, reading: _Reading, drafts: list[_Boot]) -> TraceError:
    if reading.refused is not None:
        slots, each = reading.refused.slots, reading.refused.slots_per_request
        return TraceError(
            f"the server refused to start: {slots} state slots, and one request reserves {each}",
            path=path,
            hint="give the pools more memory, raise --mamba-full-memory-ratio, or reserve fewer "
            "slots with --mamba-radix-cache-strategy; `twinpool size` tries them without a boot",
        )
    if drafts:
        has_state = any(rank.state for rank in drafts[-1].ranks.values())
        have, lack = ("state pool", "KV pool") if has_state else ("cap", "pools")
        return TraceError(
            f"the line of the {have} is there, and that of the {lack} is missing",
            path=path,
            line=drafts[-1].line,
            hint="give the whole log of a boot that ended well: the lines are "
            f"`{LOOKED_FOR[0]}` and `{LOOKED_FOR[1]}`",
        )
    if reading.has_vllm:
        return TraceError(
            "this is a log of vLLM, which prints no state pool: its blocks serve both kinds",
            path=path,
            hint="use `twinpool size` for the arithmetic, or --metrics for what a live engine does",
        )
    return TraceError(
        "no pool was found; looked for " + ", ".join(f"`{line}`" for line in LOOKED_FOR),
        path=path,
        hint="give the log from the server's start on, at level info (it prints them once)",
    )
