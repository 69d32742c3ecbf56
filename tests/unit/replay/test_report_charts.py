"""Charts of the report: marks stay inside their plots, axes are monotone, runs are joined."""

from __future__ import annotations

import copy
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from twinpool.replay.report import cliffs, curve_axes, occupancy, residency, time_axis, turns
from twinpool.replay.report.document import read_sweep
from twinpool.replay.report.markup import Markup
from twinpool.replay.report.series import series_of

SWEEP = Path(__file__).parents[2] / "data" / "report" / "sweep.json"
Document = dict[str, Any]


@pytest.fixture
def document() -> Document:
    loaded: Document = json.loads(SWEEP.read_text("utf-8"))
    return loaded


def painted(chart: Markup, style: str) -> list[ElementTree.Element]:
    """Elements of a chart that carry a class."""
    root = ElementTree.fromstring(str(chart))
    return [node for node in root.iter() if style in node.get("class", "").split()]


def path_points(node: ElementTree.Element) -> list[tuple[float, float]]:
    """Points of a path of absolute moves and lines."""
    pairs = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", node.attrib["d"])
    return [(float(x), float(y)) for x, y in pairs]


def coordinates(chart: Markup) -> list[tuple[float, float]]:
    """Every point that a chart draws or writes at."""
    points: list[tuple[float, float]] = []
    for node in ElementTree.fromstring(str(chart)).iter():
        if node.tag == "path":
            points += path_points(node)
        for x, y in (("x", "y"), ("cx", "cy"), ("x1", "y1"), ("x2", "y2")):
            if node.get(x) and node.get(y):
                points.append((float(node.attrib[x]), float(node.attrib[y])))
        if node.tag == "rect":
            left, top = float(node.attrib["x"]), float(node.attrib["y"])
            size = float(node.attrib["width"]), float(node.attrib["height"])
            assert min(size) >= 0
            points.append((left + size[0], top + size[1]))
    return points


def size_of(chart: Markup) -> tuple[float, float]:
    root = ElementTree.fromstring(str(chart))
    return float(root.attrib["width"]), float(root.attrib["height"])


def test_no_mark_leaves_its_chart(document: Document) -> None:
    sweep = read_sweep(document)
    rows = residency.choose_rows(sweep.runs)
    drawn = [cliffs.cliff_chart(sweep), turns.turns_chart(sweep.runs)]
    for run in sweep.runs:
        drawn.append(occupancy.occupancy_chart(run, sweep.runs))
        drawn.append(residency.residency_chart(run, sweep.runs, rows))
    for chart in drawn:
        width, height = size_of(chart)
        for x, y in coordinates(chart):
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_curves_lie_inside_their_panels_and_go_to_the_right(document: Document) -> None:
    sweep = read_sweep(document)
    curves = painted(cliffs.cliff_chart(sweep), "curve")
    series = [one for one in series_of(sweep.cells) if len(one.cells) > 1]
    assert len(curves) == 2 * len(series)
    panels = (
        (curve_axes.HIT_TOP, curve_axes.HIT_FOOT),
        (curve_axes.RATE_TOP, curve_axes.RATE_FOOT),
    )
    for curve in curves:
        points = path_points(curve)
        assert [x for x, _ in points] == sorted({x for x, _ in points})
        assert all(curve_axes.LEFT <= x <= curve_axes.RIGHT for x, _ in points)
        assert any(all(top <= y <= foot for _, y in points) for top, foot in panels)


def test_more_hits_stand_higher(document: Document) -> None:
    sweep = read_sweep(document)
    cells = [cell for cell in sweep.cells if cell.is_shown]
    axes = curve_axes.curve_axes(cells, [])
    for panel in ("hit", "rate"):
        ranked = sorted(
            cells, key=lambda c: c.hit_rate if panel == "hit" else c.tokens_per_s or 0.0
        )
        heights = [axes.at(cell, panel)[1] for cell in ranked]
        assert heights == sorted(heights, reverse=True)


def test_the_split_axis_is_logarithmic_only_where_it_spans_much(document: Document) -> None:
    cells = read_sweep(document).cells
    assert curve_axes.curve_axes(cells, []).split.is_log
    narrow = [cell for cell in cells if 140 <= cell.slots <= 300]
    assert not curve_axes.curve_axes(narrow, []).split.is_log


def test_kv_tokens_stand_beside_slots_only_where_one_axis_holds_for_all(
    document: Document,
) -> None:
    axes = curve_axes.curve_axes(read_sweep(document).cells, [])
    assert len(axes.kv_tokens) == len(axes.slots) > 1
    assert list(axes.kv_tokens) == sorted(axes.kv_tokens, reverse=True)
    document["cells"][0]["kv_tokens"] //= 2
    assert curve_axes.curve_axes(read_sweep(document).cells, []).kv_tokens == ()


def test_both_cliffs_are_named_once_and_shaded_between_their_cells(document: Document) -> None:
    sweep = read_sweep(document)
    chart = cliffs.cliff_chart(sweep)
    axes = curve_axes.curve_axes(sweep.cells, [])
    assert str(chart).count(">State-side cliff<") == str(chart).count(">KV-side cliff<") == 1
    spans = sorted(
        (float(node.attrib["x"]), float(node.attrib["x"]) + float(node.attrib["width"]))
        for node in painted(chart, "cliff")
    )
    expected = [(axes.split(80), axes.split(192)), (axes.split(192), axes.split(300))]
    for span, wanted in zip(spans, expected, strict=True):
        assert span == pytest.approx(wanted, abs=0.11)


def test_best_and_baseline_are_ringed_in_both_panels(document: Document) -> None:
    sweep = read_sweep(document)
    axes = curve_axes.curve_axes(sweep.cells, [])
    rings = {
        (float(node.attrib["cx"]), float(node.attrib["cy"]))
        for node in painted(cliffs.cliff_chart(sweep), "ring")
    }
    assert sweep.best
    assert sweep.baseline
    for cell in (sweep.best, sweep.baseline):
        for panel in ("hit", "rate"):
            x, y = axes.at(cell, panel)
            assert any(abs(x - a) < 0.06 and abs(y - b) < 0.06 for a, b in rings)


def test_memory_without_a_split_is_a_level_line(document: Document) -> None:
    shared = copy.deepcopy(document["cells"][0])
    shared.update(label="elastic", memory="elastic", state_slots=200, hit_rate=0.8)
    document["cells"].append(shared)
    level = painted(cliffs.cliff_chart(read_sweep(document)), "unsplit")
    assert len(level) == 2
    for node in level:
        (left, y), (right, same) = path_points(node)
        assert (left, right, y) == (curve_axes.LEFT, curve_axes.RIGHT, same)


def test_lines_of_one_engine_share_its_colour_and_differ_in_dash(document: Document) -> None:
    lines = [one for one in series_of(read_sweep(document).cells) if "sglang" in one.name]
    assert {line.name for line in lines} == {"sglang · extra_buffer", "sglang · extra_buffer_lazy"}
    assert len({line.colour for line in lines}) == 1
    assert {line.dash for line in lines} == {0, 1}


def test_names_beside_the_curve_do_not_overlap(document: Document) -> None:
    copies = []
    for at in range(9):
        for cell in copy.deepcopy(document["cells"][:5]):
            cell.update(engine=f"engine {at}", label=f"{at} {cell['label']}")
            copies.append(cell)
    document["cells"] += copies
    heights = sorted(
        float(node.attrib["y"])
        for node in painted(cliffs.cliff_chart(read_sweep(document)), "name")
    )
    assert len(heights) > 9
    assert all(b - a >= 15.9 for a, b in itertools.pairwise(heights))


def test_bands_of_a_pool_stack_up_to_its_parts(document: Document) -> None:
    run = read_sweep(document).runs[0]
    chart = occupancy.occupancy_chart(run, [run])
    for at, pool in enumerate(("kv", "state")):
        free = painted(chart, "part-free")[at]
        foot = float(free.attrib["y"]) + float(free.attrib["height"])
        height = float(free.attrib["height"])
        top_band = path_points(painted(chart, "part-evictable")[at])
        # The band's first point is its upper edge at the first sample.
        parts = run.moments[0].pools[pool]
        assert foot - top_band[0][1] == pytest.approx(height * (1 - parts["free"]), abs=0.2)


def test_runs_side_by_side_share_their_time_axis(document: Document) -> None:
    runs = read_sweep(document).runs
    time = time_axis.time_scale(runs)
    for run in runs:
        places = [time(moment.time_s) for moment in run.moments]
        assert places == sorted(places)
        assert places[0] >= time_axis.LEFT
        assert places[-1] <= time_axis.RIGHT


def test_equal_samples_of_a_session_become_one_stroke(document: Document) -> None:
    samples = document["runs"]["best"]["timeline"]
    for at, sample in enumerate(samples):
        sample["sessions"] = {"one": "both" if at < len(samples) // 2 else "cold"}
    run = read_sweep(document).runs[0]
    rows = residency.choose_rows([run])
    chart = residency.residency_chart(run, [run], rows)
    (both,) = painted(chart, "stay-both")
    (cold,) = painted(chart, "stay-cold")
    assert both.attrib["d"].count("M") == cold.attrib["d"].count("M") == 1
    middle = float(both.attrib["d"].partition("H")[2])
    assert cold.attrib["d"].startswith(f"M{middle:g} ")
    assert cold.attrib["d"].endswith(f"H{time_axis.RIGHT:g}")


def test_strokes_of_a_row_cover_its_time_without_overlap(document: Document) -> None:
    runs = read_sweep(document).runs
    rows = residency.choose_rows(runs)
    for run in runs:
        chart = residency.residency_chart(run, runs, rows)
        strokes: dict[float, list[tuple[float, float]]] = {}
        for node in painted(chart, "stay"):
            for x, y, end in re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)", node.attrib["d"]):
                strokes.setdefault(float(y), []).append((float(x), float(end)))
        assert len(strokes) == len({name for m in run.moments for name in m.sessions})
        for row in strokes.values():
            row.sort()
            assert row[-1][1] == time_axis.RIGHT
            assert all(a[1] == b[0] for a, b in itertools.pairwise(row))


def test_too_many_sessions_leave_those_that_were_seen_longest(document: Document) -> None:
    samples = document["runs"]["best"]["timeline"]
    for at, sample in enumerate(samples):
        sample["sessions"] = {f"long {n:03}": "both" for n in range(60)}
        sample["sessions"] |= {f"short {n:03}": "cold" for n in range(40) if at > 2}
    rows = residency.choose_rows(read_sweep(document).runs[:1])
    assert rows.num_seen == 100
    assert len(rows.names) == residency.MAX_ROWS
    assert sum(name.startswith("long") for name in rows.names) == 60


def test_shares_of_residency_are_parts_of_a_whole(document: Document) -> None:
    for run in read_sweep(document).runs:
        assert sum(residency.shares(run).values()) == pytest.approx(1.0)


def test_samples_beyond_the_pixels_are_thinned_evenly(document: Document) -> None:
    first = document["runs"]["best"]["timeline"][0]
    document["runs"]["best"]["timeline"] = [{**first, "time_s": float(at)} for at in range(1000)]
    moments, every = time_axis.thinned_moments(read_sweep(document).runs[0])
    assert every == 3
    assert [moment.time_s for moment in moments] == list(range(0, 1000, 3))


def test_turns_that_only_one_run_has_keep_their_place(document: Document) -> None:
    document["runs"]["baseline"]["by_turn"] = document["runs"]["baseline"]["by_turn"][1:4]
    runs = read_sweep(document).runs
    lines = painted(turns.turns_chart(runs), "curve")
    whole, part = sorted((path_points(line) for line in lines), key=len, reverse=True)
    assert [x for x, _ in part] == [x for x, _ in whole][1:4]


def test_groups_of_turns_count_from_one() -> None:
    assert turns.group_words(0, 0) == "1"
    assert turns.group_words(3, 4) == "4\u20135"
    assert turns.group_words(100, None) == "101 on"
