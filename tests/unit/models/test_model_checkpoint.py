"""Damaged, incomplete or hostile checkpoint folders end in errors that name what is wrong."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny_models import build, qwen3_5_config, qwen3_next_config, save
from twinpool.errors import ConfigError
from twinpool.models.checkpoint import read_header
from twinpool.models.config import read_config
from twinpool.models.load import expected_tensors, load_model
from twinpool.units import DType


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    save(build(qwen3_next_config(num_experts=2)), folder / "whole")
    save(build(qwen3_5_config()), folder / "shards", shard_bytes=60_000)
    save(build(qwen3_5_config(tie_word_embeddings=True)), folder / "tied")
    return folder


@pytest.fixture
def whole(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "whole", tmp_path / "whole"))


@pytest.fixture
def shards(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "shards", tmp_path / "shards"))


@pytest.fixture
def tied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "tied", tmp_path / "tied"))


Tensors = dict[str, torch.Tensor]


def _change(folder: Path, change: Callable[[Tensors], None]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def _change_index(folder: Path, change: Callable[[dict[str, str]], None]) -> None:
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    change(index["weight_map"])
    file.write_text(json.dumps(index))


def test_missing_tensors_are_counted_and_named(whole: Path) -> None:
    def drop(tensors: Tensors) -> None:
        del tensors["model.layers.1.linear_attn.dt_bias"]
        del tensors["model.layers.2.mlp.experts.1.up_proj.weight"]

    _change(whole, drop)
    with pytest.raises(ConfigError, match=r"lacks 2 of \d+ tensors") as caught:
        load_model(whole)
    assert "model.layers.1.linear_attn.dt_bias" in caught.value.message
    assert "model.layers.2.mlp.experts.1.up_proj.weight" in caught.value.message


def test_a_missing_head_is_not_taken_for_a_tied_one(whole: Path) -> None:
    _change(whole, lambda tensors: tensors.__delitem__("lm_head.weight"))
    with pytest.raises(ConfigError, match=r"lm_head\.weight"):
        load_model(whole)


def test_tensors_without_a_place_are_counted_and_named(whole: Path) -> None:
    _change(whole, lambda tensors: tensors.update({"model.layers.9.odd": torch.zeros(2)}))
    with pytest.raises(ConfigError, match=r"holds 1 tensors .* model\.layers\.9\.odd"):
        load_model(whole)


def test_long_lists_of_names_are_cut_with_a_count(whole: Path) -> None:
    extra = {f"odd.{index}": torch.zeros(1) for index in range(12)}
    _change(whole, lambda tensors: tensors.update(extra))
    with pytest.raises(ConfigError, match=r"holds 12 tensors .* and 7 more"):
        load_model(whole)


def test_draft_vision_and_buffer_weights_are_skipped_with_one_log_line(
    whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extra = {
        "mtp.fc.weight": torch.zeros(4, 4),
        "model.visual.patch_embed.proj.weight": torch.zeros(2, 3),
        "model.layers.3.self_attn.rotary_emb.inv_freq": torch.zeros(2),
    }
    _change(whole, lambda tensors: tensors.update(extra))
    with caplog.at_level("INFO"):
        load_model(whole)
    lines = [line for line in caplog.messages if "skipped" in line]
    assert len(lines) == 1
    assert "skipped 3 tensors" in lines[0]
    assert all(name in lines[0] for name in extra)


def test_a_tied_head_that_is_stored_too_is_skipped(tied: Path) -> None:
    _change(tied, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(97, 48)}))
    assert load_model(tied).spec.tie_word_embeddings


def test_wrong_shapes_are_told_with_both_shapes(whole: Path) -> None:
    _change(whole, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(47)}))
    with pytest.raises(ConfigError, match=r"model\.norm\.weight is \[47\] instead of \[48\]"):
        load_model(whole)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float8_e4m3fn])
def test_a_dtype_that_is_no_weight_is_refused(whole: Path, dtype: torch.dtype) -> None:
    _change(whole, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(48).to(dtype)}))
    with pytest.raises(ConfigError, match=r"model\.norm\.weight in model\.safetensors has dtype"):
        load_model(whole)


def test_a_missing_shard_is_named(shards: Path) -> None:
    gone = sorted(shards.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ConfigError, match=gone.name):
        load_model(shards)


@pytest.mark.parametrize(
    "name", ["../whole/model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ""]
)
def test_an_index_that_leaves_its_folder_is_refused(shards: Path, name: str) -> None:
    _change_index(shards, lambda files: files.update({"model.norm.weight": name}))
    with pytest.raises(ConfigError, match="not a plain file name"):
        load_model(shards)


def test_an_index_that_names_the_wrong_shard_is_refused(shards: Path) -> None:
    def swap(files: dict[str, str]) -> None:
        other = next(name for name in files.values() if name != files["model.norm.weight"])
        files["model.norm.weight"] = other

    _change_index(shards, swap)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight"):
        load_model(shards)


def test_a_tensor_that_the_index_forgets_is_told(shards: Path) -> None:
    _change_index(shards, lambda files: files.__delitem__("model.norm.weight"))
    with pytest.raises(ConfigError, match=r"does not list, the first is 'model\.norm\.weight'"):
        load_model(shards)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 3}}'])
def test_a_malformed_index_is_refused(shards: Path, text: str) -> None:
    (shards / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ConfigError, match=r"model\.safetensors\.index\.json"):
        load_model(shards)


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_truncated_file_is_refused_before_loading(whole: Path, kept: int) -> None:
    file = whole / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    seen: list[int] = []
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        load_model(whole, progress=lambda done, total: seen.append(done))
    assert seen == []


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[]",
        b'{"a": {"dtype": "F32", "shape": [2]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 99]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}',
        b'{"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 8]}}',
        b'{"a": 3}',
    ],
)
def test_a_malformed_header_is_refused(whole: Path, header: bytes) -> None:
    data = struct.pack("<Q", len(header)) + header + bytes(8)
    (whole / "model.safetensors").write_bytes(data)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        load_model(whole)


def test_a_huge_announced_header_is_not_read(whole: Path) -> None:
    (whole / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(ConfigError, match="announces a header"):
        load_model(whole)


def test_a_folder_without_weights_says_what_is_needed(whole: Path) -> None:
    (whole / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="holds neither"):
        load_model(whole)


@pytest.mark.parametrize("folder", ["whole", "shards"])
def test_progress_rises_to_all_bytes(made: Path, folder: str) -> None:
    seen: list[tuple[int, int]] = []
    load_model(made / folder, progress=lambda done, total: seen.append((done, total)))
    done = [one for one, _ in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1]
    assert len({total for _, total in seen}) == 1


def test_weights_cannot_be_kept_in_float16(made: Path) -> None:
    with pytest.raises(ConfigError, match="float16"):
        load_model(made / "whole", dtype=DType.FLOAT16)


@pytest.mark.parametrize("folder", ["whole", "tied"])
def test_expected_tensors_are_what_transformers_writes(made: Path, folder: str) -> None:
    written = read_header(made / folder / "model.safetensors")
    expected = expected_tensors(read_config(made / folder))
    assert expected == {name: entry.shape for name, entry in written.items()}
