"""The op table says who serves and why, and warm-up runs every kernel and reports it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from twinpool.kernels import library, threads
from twinpool.kernels.registry import OpTable, load
from twinpool.kernels.views import KvView
from twinpool.kernels.warm_up import warm_up


def test_every_op_has_a_choice_and_every_refusal_a_reason() -> None:
    table = load("auto")
    ops = set(OpTable.__dataclass_fields__) - {"name", "choices"}
    named = {choice.op for choice in table.choices}
    assert {op for op in ops if not op.startswith("pack_")} <= named
    assert {"linear float32", "linear bfloat16", "head", "experts"} <= named
    assert all(reason for choice in table.choices for _, reason in choice.refused)


def test_the_table_is_the_same_on_every_load() -> None:
    assert load("auto") == load("auto")
    assert load("reference").name == "reference"


@pytest.mark.parametrize("kind", ["auto", "reference"])
def test_warm_up_reports_every_part_in_order(kind: str) -> None:
    seen: list[tuple[int, int, str]] = []
    warm_up(load(kind), lambda *report: seen.append(report))
    assert [done for done, _, _ in seen] == list(range(len(seen)))
    assert seen[-1][:2] == (len(seen) - 1, len(seen) - 1)
    assert all(name for _, _, name in seen[:-1])
    short: list[str] = []
    warm_up(load(kind), lambda *report: short.append(report[2]), has_experts=False)
    assert len(short) == len(seen) - 1


def test_machine_code_on_disk_that_is_damaged_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "kernels.o"
    library._write(path, b"machine code")
    assert library._read(path) == b"machine code"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert library._read(path) is None
    assert library._read(tmp_path / "missing.o") is None


def test_a_cache_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    library._write(tmp_path / "file" / "kernels.o", b"machine code")
    assert library._read(tmp_path / "file" / "kernels.o") is None


def test_kernels_compile_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def njit(cache: bool = False, **options: object) -> Callable[[object], object]:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(threads.numba, "njit", njit)
    assert threads.kernel(len) is len
    assert asked == [True, False]


def test_machine_code_is_stale_when_a_file_that_it_is_made_from_changes() -> None:
    assert library.sources_digest("linear") == library.sources_digest("linear")
    assert library.sources_digest("linear") != library.sources_digest("delta")


def test_a_view_refuses_what_a_kernel_could_not_read() -> None:
    sizes = {"num_heads": 2, "key_width": 4, "value_width": 4}
    KvView(pool=np.zeros((3, 20), np.float32), k_offset=4, v_offset=12, **sizes)
    with pytest.raises(AssertionError, match="values: 13"):
        KvView(pool=np.zeros((3, 20), np.float32), k_offset=4, v_offset=13, **sizes)
    with pytest.raises(AssertionError, match="float64"):
        KvView(pool=np.zeros((3, 20)), k_offset=4, v_offset=12, **sizes)
    with pytest.raises(AssertionError, match="C-contiguous"):
        KvView(pool=np.zeros((20, 3), np.float32).T, k_offset=4, v_offset=12, **sizes)
