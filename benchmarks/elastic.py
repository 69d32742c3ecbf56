"""One memory beside every split: hit rate, throughput and waits of the default and its rivals.

Each workload is replayed at several shares of its bytes: by the default (elastic memory, eviction
by value, least work first), by Marconi's policy on one budget, and by the reference engine's
policies, first come and longest prefix, at splits from one end to the other, of which the best
counts. All cells of a row have the same bytes, requests and step costs. "of the same" is the hit
rate of the default on the requests that a rival served, beside the rival's own on those; the last
line of a share counts the rivals that serve more, and those that reuse more, of all or of the same.

The agent lanes are the committed sample; `--traces` names a folder with the whole corpora.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.roofline import describe_machine
from twinpool.cli.main import cli
from twinpool.cli.replay_bound import bound_document
from twinpool.cli.replay_setup import Prepared, prepare
from twinpool.errors import TwinpoolError
from twinpool.replay.run import Outcome, run_replay
from twinpool.replay.same_requests import on_same_requests, served_tokens

DATA = Path(__file__).parents[1] / "tests" / "data"
MODEL = DATA / "configs" / "zai-org--GLM-5.3-Flash.json"
# Bytes per rank that the published deployment had for 48 sessions.
BYTES_48 = 67_052_172_800
# A state of that model on one of two ranks.
SLOT_BYTES = 73_809_920
SHARES_OF_STATES = (0.04, 0.08, 0.12, 0.17, 0.22, 0.3, 0.47)
REFERENCES = ("sglang", "sglang-lpm")


@dataclass(frozen=True, slots=True)
class Workload:
    """What is replayed.

    Attributes:
        name: What it is called in the table.
        trace: Its file.
        num_bytes: All bytes, of which shares are taken.
        flags: How it is sent.
    """

    name: str
    trace: Path
    num_bytes: int
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay.

    Attributes:
        workload: What is replayed.
        share: Part of its bytes.
        policy: `default`, `marconi`, `vllm` or a reference policy.
        state_share: Part of the bytes that a split gives to states; 0 without a split.
        with_bound: True to bound what any policy could reach on that schedule.
    """

    workload: Workload
    share: float
    policy: str
    state_share: float = 0.0
    with_bound: bool = False


def workloads(
    names: list[str], duration_s: float, traces: Path | None, made: Path
) -> list[Workload]:
    """Return the workloads of the names, generated ones written to a folder."""
    lanes48 = DATA / "agentx" / "lanes48.tsv"
    timed = ("--duration", f"{duration_s:g}")
    looped = ("--gap-cap", "10", *timed)
    found = {
        "lanes48": Workload(
            "lanes48",
            DATA / "agentx" / "lanes48.jsonl.gz",
            BYTES_48,
            ("--lanes-file", str(lanes48), "--recycle", *looped),
        )
    }
    if traces is not None:
        dev = traces / "agentx" / "agentx_dev.jsonl.gz"
        for lanes in (24, 48, 96):
            name = f"dev{lanes}"
            flags = ("--lanes", str(lanes), "--recycle", *looped)
            found[name] = Workload(name, dev, BYTES_48 * lanes // 48, flags)
        conversation = traces / "mooncake" / "conversation_trace.jsonl.gz"
        found["mooncake"] = Workload("mooncake", conversation, BYTES_48, timed)
    shapes = {"chat": ("--sessions", "1200", "--rate", "0.4"), "burst": ("--requests", "4000")}
    for shape, parameters in shapes.items():
        if shape in names:
            file = made / f"{shape}.jsonl"
            _call("trace", "make", shape, "--output", str(file), "--seed", "0", *parameters)
            found[shape] = Workload(shape, file, BYTES_48 // 8, timed)
    unknown = [name for name in names if name not in found]
    if unknown:
        raise SystemExit(f"no workload {unknown[0]!r}; there are {', '.join(found)} (--traces)")
    return [found[name] for name in names]


def cells(workload: Workload, share: float, *, with_bound: bool) -> Iterator[Cell]:
    """Yield what is replayed of a workload at a share of its bytes."""
    yield Cell(workload, share, "default", with_bound=with_bound)
    yield Cell(workload, share, "marconi")
    for policy in REFERENCES:
        for state_share in SHARES_OF_STATES:
            yield Cell(workload, share, policy, state_share)


def replay(cell: Cell) -> dict[str, Any]:
    """Replay one cell; a split on which nothing can run has no figures."""
    began = time.perf_counter()
    try:
        prepared = prepare(str(cell.workload.trace), str(MODEL), _options(cell))
        outcome = run_replay(prepared.setup)
    except TwinpoolError as error:
        return {"policy": cell.policy, "state_share": cell.state_share, "error": str(error)}
    return _figures(cell, prepared, outcome) | {"seconds": round(time.perf_counter() - began, 1)}


def _figures(cell: Cell, prepared: Prepared, outcome: Outcome) -> dict[str, Any]:
    summary = outcome.summary
    ends = [*outcome.tally.served, *outcome.tally.unfinished]
    waits = [
        (each.admitted_s if each.admitted_s >= 0 else summary.duration_s) - each.arrival_s
        for each in ends
    ]
    found = {
        "policy": cell.policy,
        "state_share": cell.state_share,
        "slots": prepared.setup.counts.num_slots if cell.state_share else None,
        "hit_rate": round(summary.hit_rate, 3),
        "reusable": round(summary.reusable_rate, 3),
        "cached_per_s": round(summary.cached_tokens / summary.duration_s, 1),
        "tokens_per_s": round(summary.output_tokens_per_s, 1),
        "ttft_p99_s": round(summary.ttft_s.p99, 1),
        "longest_wait_s": round(max(waits, default=0.0), 1),
        "refused": len(outcome.tally.refused),
        "served": served_tokens(outcome.tally.served),
    }
    if cell.with_bound:
        found["bound"] = round(bound_document(prepared, outcome)["hit_rate"], 3)
    return found


def _options(cell: Cell) -> dict[str, Any]:
    num_bytes = int(cell.workload.num_bytes * cell.share)
    arguments = [
        *(str(cell.workload.trace), "--model", str(MODEL), "--tp", "2"),
        *("--kv-cache-dtype", "fp8_e4m3", "--memory-after-weights", str(num_bytes)),
        *cell.workload.flags,
    ]
    if cell.policy != "default":
        arguments += ["--engine", cell.policy]
    if cell.state_share:
        slots = max(int(num_bytes * cell.state_share / SLOT_BYTES), 1)
        arguments += ["--max-mamba-cache-size", str(slots), "--page-size", "64"]
        arguments += ["--mamba-radix-cache-strategy", "extra_buffer_lazy"]
    command = cli.get_command(None, "replay")  # type: ignore[arg-type]
    assert command is not None
    params = dict(command.make_context("replay", arguments).params)
    return params


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the default beside each rival on the requests that both served.

    Args:
        rows: What `replay` returned, the default first; their requests are taken out of them.
    """
    served = [row.pop("served", None) for row in rows]
    for row, requests in zip(rows[1:], served[1:], strict=True):
        if served[0] is not None and requests is not None:
            same = on_same_requests(requests, served[0])
            row["same_requests"] = same.requests
            row["same_hit_rate"] = round(same.hit_rate, 3)
            row["same_default"] = round(same.other_hit_rate, 3)
    return rows


def best(rows: list[dict[str, Any]], policy: str) -> dict[str, Any] | None:
    """Return the split with the highest throughput of a policy, None where none could run."""
    able = [row for row in rows if row["policy"] == policy and "error" not in row]
    return max(able, key=lambda row: row["tokens_per_s"], default=None)


def _call(*arguments: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main(list(arguments), standalone_mode=False)


def main(argv: list[str] | None = None) -> None:
    """Measure and print; `argv` are the flags, those of the process when None."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="lanes48")
    parser.add_argument("--shares", default="1,0.75,0.5,0.35")
    parser.add_argument("--duration", type=float, default=3600.0)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--bound", action="store_true", help="bound what any policy could reach")
    parser.add_argument("--json", type=Path, help="write all cells to a file")
    wanted = parser.parse_args(argv)
    names = wanted.workloads.split(",")
    shares = [float(share) for share in wanted.shares.split(",")]
    print(json.dumps({"machine": describe_machine()}))
    print(
        f"{'workload':10} {'bytes':>5}  {'policy':22} hit rate  cached/s  tokens/s  TTFT p99"
        "  longest wait  of the same"
    )
    everything = []
    with tempfile.TemporaryDirectory() as made, multiprocessing.Pool(wanted.processes) as pool:
        for workload in workloads(names, wanted.duration, wanted.traces, Path(made)):
            for share in shares:
                asked = list(cells(workload, share, with_bound=wanted.bound))
                rows = compare(pool.map(replay, asked, chunksize=1))
                if all("error" in row for row in rows):
                    raise SystemExit(f"error: {rows[0]['error']}")
                everything += [{"workload": workload.name, "share": share} | row for row in rows]
                for policy in ("default", "marconi", *REFERENCES):
                    _show(workload.name, share, policy, best(rows, policy))
                _show_rivals(workload.name, share, rows)
    if wanted.json is not None:
        wanted.json.write_text(json.dumps(everything, indent=1))


def _show(name: str, share: float, policy: str, row: dict[str, Any] | None) -> None:
    if row is None:
        print(f"{name:10} {share:5.0%}  {policy:22} no split can run", flush=True)
        return
    what = f"{policy}, {row['slots']} slots" if row["slots"] else policy
    bound = f"  bound {row['bound']:.3f}" if "bound" in row else ""
    same = ""
    if "same_default" in row:
        same = f"  {row['same_default']:.3f} to {row['same_hit_rate']:.3f}"
    print(
        f"{name:10} {share:5.0%}  {what:22} {row['hit_rate']:8.3f}  {row['cached_per_s']:8,.0f}"
        f"  {row['tokens_per_s']:8.0f}  {row['ttft_p99_s']:8.1f}"
        f"  {row['longest_wait_s']:12.0f}{same}{bound}",
        flush=True,
    )


def _show_rivals(name: str, share: float, rows: list[dict[str, Any]]) -> None:
    ours, *rivals = rows
    able = [row for row in rivals if "same_default" in row]
    if not able:
        return
    more = sum(row["tokens_per_s"] > ours["tokens_per_s"] for row in able)
    higher = sum(row["hit_rate"] > ours["hit_rate"] for row in able)
    same = sum(row["same_hit_rate"] > row["same_default"] for row in able)
    print(
        f"{name:10} {share:5.0%}  of {len(able)} rivals {more} serve more, {higher} have a higher"
        f" hit rate, {same} on the same requests",
        flush=True,
    )


if __name__ == "__main__":
    main()
