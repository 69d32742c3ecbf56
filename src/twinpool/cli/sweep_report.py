"""The text of `twinpool sweep`: the table of splits, the cliffs and the split to take.

Knows no arithmetic beyond shares of the baseline.
"""

from __future__ import annotations

from typing import Any

from twinpool.cli.output import columns


def sweep_report(document: dict[str, Any]) -> str:
    """Write the report.

    Args:
        document: What `run_sweep` put together.

    Returns:
        Text without a newline at its end.
    """
    parts = [_head(document), _table(document), _cliffs(document), _recommended(document)]
    parts.append(_unsplit(document))
    if document["bound"] is not None:
        parts.append(_bound(document))
    if document["notes"]:
        parts.append("notes\n" + "\n".join(f"  {note}" for note in document["notes"]))
    return "\n\n".join(part for part in parts if part)


def _head(document: dict[str, Any]) -> str:
    bytes_each = document["memory_after_weights"]
    return (
        f"{document['trace']} on {document['model']}, {document['loop']}\n"
        f"{bytes_each:,} B for both pools at every split; without limits "
        f"{document['reusable_rate']:.3f} of the prompts could be reused"
    )


def _table(document: dict[str, Any]) -> str:
    cells = document["cells"]
    base = document["baseline"]
    reference = cells[base]["output_tokens_per_s"] if base is not None else 0.0
    has_labels = any(cell["label"] for cell in cells)
    head = ["slots", "KV tokens", "ratio", "hit rate", "tokens/s", ""]
    head += ["TTFT p50, s", "p99, s", "longest wait, s"]
    rows = [[*([""] if has_labels else []), *head, ""]]
    for at, cell in enumerate(cells):
        label = [cell["label"]] if has_labels else []
        if cell["error"] is not None:
            rows.append([*label, _slots(cell), "-", "", "", "", "", "", "", "", "-"])
            rows[-1][-1] = cell["error"]
            continue
        factor = cell["output_tokens_per_s"] / reference if reference else 0.0
        rows.append(
            [
                *label,
                _slots(cell),
                f"{cell['kv_tokens']:,}" if cell["state_slots"] else "shared",
                "-" if cell["ratio"] is None else f"{cell['ratio']:.2f}",
                f"{cell['hit_rate']:.3f}",
                f"{cell['output_tokens_per_s']:,.0f}",
                f"{factor:.1f}x" if factor else "",
                *_latencies(cell),
                _marks(document, at),
            ]
        )
    first = int(has_labels)
    return columns(rows, right=range(first, first + 9))


def _latencies(cell: dict[str, Any]) -> list[str]:
    """A split that served nothing was not quick."""
    if not cell["requests"]:
        return ["-", "-", "-"]
    ttft_s = cell["ttft_s"]
    return [f"{ttft_s['p50']:,.1f}", f"{ttft_s['p99']:,.1f}", f"{cell['wait_s']['max']:,.0f}"]


def _slots(cell: dict[str, Any]) -> str:
    return f"{cell['state_slots']:,}" if cell["state_slots"] else "shared"


def _marks(document: dict[str, Any], at: int) -> str:
    marks = []
    refused = document["cells"][at]["refused"]
    if refused:
        marks.append(f"{refused:,} requests never fit")
    if at == document["best"]:
        marks.append("best")
    if at == document["baseline"]:
        marks.append("as the flags have it")
    for cliff in document["cliffs"]:
        if cliff["to"] == at:
            marks.append(f"{cliff['side']} cliff")
    return ", ".join(marks)


def _cliffs(document: dict[str, Any]) -> str:
    cells = document["cells"]
    lines = []
    for cliff in document["cliffs"]:
        a, b = cells[cliff["from"]], cells[cliff["to"]]
        cause = (
            "too little KV for what returns"
            if cliff["side"] == "kv"
            else "too few slots for running requests and checkpoints"
        )
        label = f"{cliff['engine']}: " if cliff["engine"] else ""
        lines.append(
            f"  {label}from {a['state_slots']:,} to {b['state_slots']:,} slots the hit rate goes "
            f"from {cliff['hit_rate_from']:.3f} to {cliff['hit_rate_to']:.3f}: {cause}"
        )
    return "cliffs\n" + "\n".join(lines) if lines else ""


def _recommended(document: dict[str, Any]) -> str:
    found = document["recommended"]
    policies = ", ".join(found["policies"].values())
    where = f" with {policies}" if policies else ""
    rows = [
        [engine, flags or f"- (what was replayed does not exist there: --engines {engine})"]
        for engine, flags in found["flags"].items()
    ]
    return (
        f"take {found['state_slots']:,} slots and {found['kv_tokens']:,} KV tokens{where}\n"
        f"  {found['why']}\n{columns(rows)}{_flag_notes(found)}"
    )


def _flag_notes(found: dict[str, Any]) -> str:
    return "".join(f"\n  {engine}: {note}" for engine, note in found["flag_notes"].items())


def _unsplit(document: dict[str, Any]) -> str:
    """Say where an engine without a split does better than the best split."""
    best = document["cells"][document["best"]]
    better = [
        f"{cell['label']} (hit rate {cell['hit_rate']:.3f}, {cell['output_tokens_per_s']:,.0f} "
        "tokens/s)"
        for cell in document["cells"]
        if cell["error"] is None
        and cell["state_slots"] is None
        and cell["output_tokens_per_s"] > best["output_tokens_per_s"]
    ]
    if not better:
        return ""
    return f"one memory for states and KV does better than any split tried: {', '.join(better)}"


def _bound(document: dict[str, Any]) -> str:
    bound = document["bound"]
    best = document["cells"][document["best"]]
    share = best["hit_rate"] / bound["hit_rate"] if bound["hit_rate"] else 1.0
    return (
        f"no policy could exceed a hit rate of {bound['hit_rate']:.3f} on this schedule "
        f"({bound['kind']}); the best split reaches {share:.0%} of it"
    )
