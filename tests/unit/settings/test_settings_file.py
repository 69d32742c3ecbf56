"""Settings files are flat tables whose numbers stay exact."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from twinpool.errors import ConfigError
from twinpool.settings.file import MAX_FILE_BYTES, read_settings_file
from twinpool.settings.resolve import resolve


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'pool_memory = "256MiB"\nmamba_full_memory_ratio = 0.1\napi_keys = ["k"]\n'),
        ("a.json", '{"pool_memory": "256MiB", "mamba_full_memory_ratio": 0.1, "api_keys": ["k"]}'),
    ],
)
def test_both_formats_give_the_same_settings(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    resolved = resolve({}, file=read_settings_file(tmp_path / name))
    assert resolved.memory.pool_memory == 2**28
    assert resolved.memory.mamba_full_memory_ratio == Fraction(1, 10)
    assert resolved.server.api_keys == ("k",)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.toml", b"x = ", "cannot be read"),
        ("a.json", b"{", "cannot be read"),
        ("a.json", b"[" * 100_000, "cannot be read"),
        ("a.json", b"[]", "holds a list"),
        ("a.json", b"\xff", "not UTF-8"),
        ("a.yaml", b"a: 1", r"neither \.toml nor \.json"),
        ("a.toml", b"#" * (MAX_FILE_BYTES + 1), "larger than"),
    ],
)
def test_what_is_no_table_is_refused(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        read_settings_file(tmp_path / name)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        read_settings_file(tmp_path / "none.toml")
