"""The report page: complete, self-contained, escaped, the same every time, for any sweep."""

from __future__ import annotations

import copy
import json
import random
import re
import xml.etree.ElementTree as ElementTree
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from twinpool.errors import ConfigError
from twinpool.replay.report import numerals
from twinpool.replay.report.page import render_report

SWEEP = Path(__file__).parents[2] / "data" / "report" / "sweep.json"
VOID = {"meta", "br", "hr", "col"}
Document = dict[str, Any]


class Nesting(HTMLParser):
    """Collects what is wrong with the nesting, and every attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text.append(data)


@pytest.fixture
def document() -> Document:
    loaded: Document = json.loads(SWEEP.read_text("utf-8"))
    return loaded


def parsed(page: str) -> Nesting:
    nesting = Nesting()
    nesting.feed(page)
    nesting.close()
    return nesting


def charts(page: str) -> dict[str, ElementTree.Element]:
    found = [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.S)]
    return {chart.attrib["id"]: chart for chart in found}


def words(page: str) -> str:
    """All text of a page, its white space made plain."""
    return re.sub(r"\s+", " ", " ".join(parsed(page).text))


def failed(cell: Document) -> None:
    """Make a cell one that broke off."""
    numbers = [name for name, value in cell.items() if isinstance(value, (int, float))]
    cell.update(dict.fromkeys(numbers), error="OutOfSlots: 4 needed, 0 free")
    cell.update(ttft_s=None, wait_s=None, tpot_s=None)


def test_the_page_is_well_formed(document: Document) -> None:
    nesting = parsed(render_report(document))
    assert nesting.wrong == []
    assert nesting.open == []


def test_identifiers_are_unique_and_every_label_points_to_one(document: Document) -> None:
    found = parsed(render_report(document)).attributes
    names = [value for _, name, value in found if name == "id"]
    assert len(names) == len(set(names))
    for _, name, value in found:
        if name == "aria-labelledby":
            assert set(value.split()) <= set(names)


def test_every_chart_is_xml_and_says_what_it_shows(document: Document) -> None:
    found = charts(render_report(document))
    assert set(found) == {
        "cliffs",
        "occupancy-best",
        "occupancy-baseline",
        "residency-best",
        "residency-baseline",
        "turns",
    }
    for chart in found.values():
        assert chart.attrib["role"] == "img"
        assert chart.findtext("title")
        assert chart.findtext("desc")


def test_nothing_outside_the_page_is_referred_to(document: Document) -> None:
    page = render_report(document)
    assert not re.search(r"https?:|//\w|@import|\burl\(", page.replace("// ", ""))
    names = {name for _, name, _ in parsed(page).attributes}
    assert names.isdisjoint({"src", "href", "srcset", "action", "xlink:href", "http-equiv"})
    assert "fetch(" not in page
    assert "XMLHttpRequest" not in page


def test_equal_documents_give_equal_bytes_and_stay_as_they_are(document: Document) -> None:
    before = copy.deepcopy(document)
    first = render_report(document)
    assert document == before
    assert render_report(before) == first


def test_every_text_from_the_document_is_escaped(document: Document) -> None:
    poison = "<script>alert('x')</script>\"&amp;"
    for name in ("trace", "format", "model", "loop"):
        document[name] += poison
    for cell in document["cells"]:
        for name in ("label", "engine", "strategy", "eviction", "order", "memory"):
            cell[name] += poison
    document["cells"][1]["error"] = poison
    document["bound"]["kind"] += poison
    document["recommended"].update(why=poison, margin=poison, flags={poison: poison})
    document["cost"] = {poison: {"value": poison, "source": poison, "why": poison}}
    document["notes"] = [poison]
    for run in document["runs"].values():
        for sample in run["timeline"]:
            sample["sessions"][poison] = "cold"
    page = render_report(document)
    assert "<script>alert" not in page
    nesting = parsed(page)
    assert nesting.wrong == []
    assert nesting.open == []
    assert len(charts(page)) == 6
    assert poison in "".join(nesting.text)


def test_sections_come_in_the_order_of_a_reader(document: Document) -> None:
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", render_report(document))
    assert titles == [
        "Flags to paste",
        "The cliff curve",
        "What filled the pools",
        "What stayed of each session",
        "Hits by turn",
        "All cells",
        "How the numbers were got",
    ]


def test_the_headline_has_split_gain_and_share_of_the_bound(document: Document) -> None:
    document["bound"]["hit_rate"] = 0.8
    best, baseline = (document["cells"][document[name]] for name in ("best", "baseline"))
    best.update(hit_rate=0.6, output_tokens_per_s=240.0)
    baseline.update(hit_rate=0.05, output_tokens_per_s=80.0)
    heading = re.search(r"<h1>(.*?)</h1>", render_report(document), re.S)
    assert heading
    text = unescape(re.sub(r"<[^>]+>", "", heading[1]))
    assert text.count(".") - len(re.findall(r"\d\.\d", text)) == 1
    for part in ("192 slots", "8.81\u202fM tokens", "60\u202f%", "240 tokens/s", "5\u202f%"):
        assert part in text
    assert "3\u00d7 the throughput" in text
    assert "that is 75\u202f%" in text


def test_every_number_of_every_cell_is_shown(document: Document) -> None:
    nesting = parsed(render_report(document))
    keys = [value for tag, name, value in nesting.attributes if tag == "td" and name == "data-v"]
    for cell in document["cells"]:
        numbers = [value for value in cell.values() if isinstance(value, (int, float))]
        for name in ("ttft_s", "wait_s", "tpot_s"):
            numbers += cell[name].values()
        assert len(numbers) == 28
        for number in numbers:
            assert f"{number:.9g}" in keys
    text = " ".join(nesting.text)
    for cell in document["cells"]:
        assert numerals.whole(cell["regretted_tokens"]) in text
        assert numerals.percent(cell["hit_rate"], 1) in text
        assert numerals.seconds(cell["ttft_s"]["p99"]) in text


def test_flags_cost_and_notes_are_shown(document: Document) -> None:
    document["notes"] = ["a note of its own"]
    text = words(render_report(document))
    for line in document["recommended"]["flags"].values():
        assert line is None or line in text
    for name, term in document["cost"].items():
        assert name in text
        assert term["source"] in text
    assert "a note of its own" in text
    assert document["recommended"]["why"] in text


def test_a_sweep_of_one_cell_is_drawn_as_a_row(document: Document) -> None:
    document.update(cells=document["cells"][:1], best=0, baseline=None, cliffs=[])
    document["runs"] = {"best": {**document["runs"]["best"], "cell": 0}, "baseline": None}
    page = render_report(document)
    assert set(charts(page)) == {"cells-chart", "occupancy-best", "residency-best", "turns"}
    assert "baseline" not in words(page)


def test_a_failed_cell_stands_in_the_table_only(document: Document) -> None:
    cell = document["cells"][document["baseline"] - 1]
    failed(cell)
    page = render_report(document)
    assert "OutOfSlots: 4 needed, 0 free" in words(page)
    assert f"1 of {len(document['cells'])} cells failed" in words(page)
    drawn = ElementTree.tostring(charts(page)["cliffs"], encoding="unicode")
    assert f"{cell['label']}," not in drawn
    assert parsed(page).wrong == []


def test_a_sweep_of_which_nothing_came_says_so(document: Document) -> None:
    for cell in document["cells"]:
        failed(cell)
    document.update(best=None, cliffs=[], bound=None, reusable_rate=None, recommended=None)
    document["runs"] = {"best": None, "baseline": None}
    page = render_report(document)
    assert charts(page) == {}
    text = words(page)
    assert f"None of {len(document['cells'])} cells could be replayed" in text
    assert "No cell has figures to draw" in text
    assert "No run was sampled over time" in text
    assert "recommends no split" in text


def test_a_model_without_states_has_one_pool(document: Document) -> None:
    for cell in document["cells"]:
        cell.update(state_slots=0, ratio=None, slots_per_request=None)
    document["recommended"].update(state_slots=None, ratio=None)
    document["cliffs"] = []
    for run in document["runs"].values():
        for sample in run["timeline"]:
            sample["state"] = None
    found = charts(render_report(document))
    assert "cells-chart" in found
    for name in ("occupancy-best", "occupancy-baseline"):
        drawn = ElementTree.tostring(found[name], encoding="unicode")
        assert "KV pool" in drawn
        assert "State pool" not in drawn


def test_without_timeline_and_bound_the_rest_is_there(document: Document) -> None:
    document["bound"] = None
    for run in document["runs"].values():
        run["timeline"] = []
    page = render_report(document)
    assert set(charts(page)) == {"cliffs", "turns"}
    assert "bound" not in words(page)
    assert "no policy can pass" not in words(page)


def test_missing_fields_and_cells_are_named(document: Document) -> None:
    del document["cells"][0]["regretted_tokens"]
    with pytest.raises(ConfigError, match="no field 'regretted_tokens'"):
        render_report(document)


def test_a_cell_that_is_not_there_is_an_error(document: Document) -> None:
    document["best"] = len(document["cells"])
    with pytest.raises(ConfigError, match="it has 10 cells"):
        render_report(document)


def test_an_unknown_residency_is_an_error(document: Document) -> None:
    document["runs"]["best"]["timeline"][0]["sessions"]["one"] = "lukewarm"
    with pytest.raises(ConfigError, match="'lukewarm'"):
        render_report(document)


def test_a_large_sweep_stays_below_a_megabyte(document: Document) -> None:
    chance = random.Random(4)
    states = ["running", "both", "kv only", "state only", "cold"]
    document["cells"] = [copy.deepcopy(cell) for cell in document["cells"] * 10]
    for at, cell in enumerate(document["cells"]):
        cell.update(state_slots=40 + 4 * at, engine=f"engine {at % 7}")
    for run in document["runs"].values():
        run["timeline"] = [
            {
                "time_s": 9.0 * at,
                "kv": dict.fromkeys(("free", "evictable", "locked", "working"), 0.25),
                "state": {
                    "free": 0.1,
                    "evictable": 0.9 * (share := chance.random()),
                    "locked": 0.0,
                    "working": 0.9 * (1 - share),
                },
                "num_running": chance.randrange(48),
                "num_waiting": chance.randrange(48),
                "prompt_tokens": 1,
                "cached_tokens": 0,
                # Every session changes at almost every sample: no run is longer than a few.
                "sessions": {f"session {n}": chance.choice(states) for n in range(48)},
            }
            for at in range(400)
        ]
    size = len(render_report(document).encode())
    assert 300_000 < size < 1_000_000
