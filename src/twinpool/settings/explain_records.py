"""What an explain plan is made from, and what it is: frozen records, and no arithmetic.

Knows neither how a log is read nor how its numbers are worked out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from twinpool.memory.boots import BootLog, RankPools
from twinpool.memory.recover import Recovered, Reserve, Split
from twinpool.memory.workload import ConcurrencyPlan, Workload, WorkloadPlan
from twinpool.settings.values import Value
from twinpool.spec.geometry import Geometry
from twinpool.spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """What `twinpool explain LOG` was asked.

    Attributes:
        log: What the log says.
        flags: Settings that were given, by name, as text or parsed.
        model: The model's name and shapes; None: the log has to do.
        average_context: Tokens per running request; None when not asked.
        workload: Sessions that return; None when not asked.
    """

    log: BootLog
    flags: Mapping[str, object]
    model: tuple[str, ModelSpec] | None = None
    average_context: int | None = None
    workload: Workload | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRow:
    """One line of the table of splits.

    Attributes:
        name: `log` for the split of the log, `asked` for one that a flag asked for, else empty.
        ratio: State bytes to KV bytes.
        split: What it gives; None where a pool would be empty.
        refused: Why it gives nothing; empty when it does.
    """

    name: str
    ratio: Fraction | None
    split: Split | None
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainPlan:
    """What a log comes to.

    Attributes:
        request: What was asked.
        pools: The rank whose numbers are shown.
        recovered: Bytes per slot and per row.
        geometry: The model's exact bytes; None without a model.
        reserve: What a running request reserves.
        values: Numbers by name, each with how it was got.
        binding: What decides the cap: `state`, `kv`, `asked` or `estimate`.
        current: The pools of the log, split as they are.
        rows: Other splits of the same bytes.
        balanced: The ratio at which both pools run out together; None without a context.
        concurrency: The most requests of the average context; None without one.
        workload: What the sessions need; None without any.
        notes: What a reader should know.
        replicas: Data parallel replicas, each with such pools and such a cap.
        advice: What to change.
    """

    request: ExplainRequest
    pools: RankPools
    recovered: Recovered
    geometry: Geometry | None
    reserve: Reserve
    values: Mapping[str, Value[object]]
    binding: str
    current: Split
    rows: tuple[SplitRow, ...]
    balanced: Fraction | None
    concurrency: ConcurrencyPlan | None
    workload: WorkloadPlan | None
    notes: tuple[str, ...]
    replicas: int = 1
    advice: tuple[str, ...] = ()

    @property
    def cap(self) -> int:
        """Requests that may run at once, per replica; 0 when not even one may."""
        return int(str(self.values["max_running_requests"].value))
