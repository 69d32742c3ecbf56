"""`twinpool size` says what a number stands for, where it is from, and which flag did nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twinpool.cli.main import run

HYBRID = "Qwen3.5-35B-A3B"
MEMORY = ("--memory-after-weights", "20GiB")


def size(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["size", *arguments, "--json"]) == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((*MEMORY, "--mem-fraction-static", "0.5"), "mem_fraction_static"),
        ((*MEMORY, "--weights-bytes", "1GiB"), "weights_bytes"),
        ((*MEMORY, "--chunked-prefill-size", "4096"), "chunked_prefill_size"),
        (
            ("--gpu", "H200", "--mem-fraction-static", "0.9", "--chunked-prefill-size", "4096"),
            "chunked_prefill_size",
        ),
    ],
)
def test_memory_flags_without_effect_are_named(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], name: str
) -> None:
    notes = size(capsys, HYBRID, *arguments)["notes"]
    assert [note for note in notes if note.startswith(f"{name} has no effect: ")]


def test_memory_flags_with_effect_are_not_called_idle(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--weights-bytes", "60GB", "--chunked-prefill-size", "4096")
    notes = size(capsys, HYBRID, "--gpu", "H200", *flags)["notes"]
    assert not [note for note in notes if "has no effect" in note]


def test_copies_on_more_gpus_than_ranks_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    several = size(capsys, HYBRID, "--gpu", "H200", "--num-gpus", "8", "--tp", "2")
    assert [note for note in several["notes"] if note.startswith("8 GPUs hold 4 copies")]
    one = size(capsys, HYBRID, "--gpu", "H200", "--num-gpus", "8", "--tp", "8")
    assert not [note for note in one["notes"] if "copies" in note]


def test_assumed_fraction_of_a_vision_model_says_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def warned(*arguments: str) -> bool:
        return any("vision" in note for note in size(capsys, *arguments)["notes"])

    assert warned(HYBRID, "--gpu", "H200")
    assert not warned(HYBRID, "--gpu", "H200", "--mem-fraction-static", "0.9")
    assert not warned("Qwen3-Next-80B-A3B-Instruct", "--gpu", "B300")


def test_dtypes_that_were_asked_for_are_called_flags(capsys: pytest.CaptureFixture[str]) -> None:
    plain = size(capsys, HYBRID, *MEMORY)["provenance"]
    flags = ("--kv-cache-dtype", "fp8", "--mamba-ssm-dtype", "bfloat16", "--dtype", "float32")
    asked = size(capsys, HYBRID, *MEMORY, *flags)["provenance"]
    for name, value in (
        ("kv_cache_dtype", "fp8_e4m3"),
        ("mamba_ssm_dtype", "bfloat16"),
        ("weights_dtype", "float32"),
    ):
        assert (asked[name]["value"], asked[name]["source"]) == (value, "flag")
        assert plain[name]["source"] == "derived"
        assert plain[name]["why"]


def test_text_shows_what_the_bytes_were_worked_out_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["size", HYBRID, "--gpu", "H200"]) == 0
    text = capsys.readouterr().out
    assert "static part" in text
    assert "less weights" in text
    assert run(["size", HYBRID, *MEMORY]) == 0
    assert "less weights" not in capsys.readouterr().out


def test_draft_layers_without_rows_are_refused_with_a_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["size", "mamba-2.8b-hf", *MEMORY, "--draft-layers", "3"]) == 2
    error = capsys.readouterr().err
    assert "3 draft layers" in error
    assert "hint: leave out --draft-layers" in error
