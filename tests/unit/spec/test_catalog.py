"""The model catalog: every entry is a model that parses and weighs what its publisher says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from twinpool.errors import ConfigError
from twinpool.spec.catalog import CATALOG, CatalogModel, find_model
from twinpool.spec.geometry import geometry_of
from twinpool.spec.model import parse_model_spec, read_model_spec

CONFIGS = Path(__file__).parents[2] / "data" / "configs"
TABLE = Path(__file__).parents[3] / "src" / "twinpool" / "spec" / "catalog" / "models.json"
# Its publisher rounds 1.46 billion down.
ROUNDED = "ibm-granite/granite-4.0-h-1b"
SIZE_IN_NAME = re.compile(r"[-.](\d+(?:\.\d+)?)([BMT])(?![a-z0-9])", re.IGNORECASE)
UNITS = {"M": 10**6, "B": 10**9, "T": 10**12}
WIDTHS = {"bfloat16": 2, "float32": 4, "fp8": 1}
EVERY = pytest.mark.parametrize("model", CATALOG, ids=lambda model: model.name)


@EVERY
def test_every_entry_parses_and_its_weights_agree_with_the_published_number(
    model: CatalogModel,
) -> None:
    spec = parse_model_spec(model.config)
    assert spec.parameters == pytest.approx(model.parameters, rel=0.005)
    assert spec.active_parameters == pytest.approx(model.active_parameters, rel=0.005)
    assert spec.has_dtype


@pytest.mark.parametrize(
    ("model", "number", "unit"),
    [
        pytest.param(model, *size.groups(), id=model.name)
        for model in CATALOG
        if model.name != ROUNDED and (size := SIZE_IN_NAME.search(model.name))
    ],
)
def test_the_size_in_a_name_is_the_size_of_the_model(
    model: CatalogModel, number: str, unit: str
) -> None:
    assert model.parameters == pytest.approx(float(number) * UNITS[unit.upper()], rel=0.1)


@pytest.mark.parametrize(
    "model",
    [model for model in CATALOG if model.weights_dtype in WIDTHS],
    ids=lambda model: model.name,
)
def test_bytes_follow_from_the_weights_or_from_the_whole_checkpoint(model: CatalogModel) -> None:
    alone = model.parameters * WIDTHS[model.weights_dtype]
    if model.weights_are_published:
        # Beside the language model: a vision tower, draft layers, scales; sizes are rounded.
        assert 0.995 * alone < model.weights_bytes < 1.07 * alone
    else:
        assert model.weights_bytes == alone


@EVERY
def test_an_entry_fits_one_rank_and_says_where_it_comes_from(model: CatalogModel) -> None:
    geometry = geometry_of(parse_model_spec(model.config))
    assert geometry.row_bytes + geometry.slot_bytes > 0
    assert "config.json" in model.source or "transformers" in model.source


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Qwen3.5-27B", "Qwen--Qwen3.5-27B"),
        ("Qwen3.5-35B-A3B", "Qwen--Qwen3.5-35B-A3B"),
        (
            "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        ),
        ("Nemotron-H-56B-Base-8K", "nvidia--Nemotron-H-56B-Base-8K"),
    ],
)
def test_a_shortened_config_reads_as_the_published_file(name: str, file: str) -> None:
    assert parse_model_spec(find_model(name).config) == read_model_spec(CONFIGS / f"{file}.json")


def test_glm_differs_from_its_published_file_by_the_dtype_alone() -> None:
    published = json.loads((CONFIGS / "zai-org--GLM-5.3-Flash.json").read_text())
    assert published["dtype"] is None
    config = find_model("GLM-5.3-Flash").config
    assert parse_model_spec(config) == parse_model_spec({**published, "dtype": "bfloat16"})


def test_qwen3_next_has_the_bytes_that_its_engine_reports() -> None:
    geometry = geometry_of(parse_model_spec(find_model("Qwen3-Next-80B-A3B-Instruct").config))
    assert (geometry.slot_bytes, geometry.row_bytes) == (77266944, 24576)


@pytest.mark.parametrize(
    "spelling", ["Qwen/Qwen3.5-27B", "qwen/qwen3.5-27b", "Qwen3.5-27B", " qwen3.5-27b "]
)
def test_the_organisation_and_the_case_of_a_name_may_be_left_out(spelling: str) -> None:
    assert find_model(spelling).name == "Qwen/Qwen3.5-27B"


def test_an_alias_finds_its_model() -> None:
    assert find_model("Llama-3.1-8B-Instruct") is find_model("meta-llama/Llama-3.1-8B")


def test_no_spelling_belongs_to_two_models() -> None:
    spellings = [
        spelling
        for model in CATALOG
        for name in (model.name, *model.aliases)
        for spelling in (name.lower(), name.lower().partition("/")[2])
    ]
    assert all(spellings)
    assert len(spellings) == len(set(spellings))


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        find_model("Qwen3.5-72B")
    assert "'Qwen3.5-72B'" in caught.value.message
    assert str(len(CATALOG)) in caught.value.message
    assert "Qwen/Qwen3.5-27B" in caught.value.hint
    assert "config.json" in caught.value.hint


def test_a_name_that_is_near_nothing_still_gets_a_way_out() -> None:
    with pytest.raises(ConfigError, match="not one of") as caught:
        find_model("§§")
    assert caught.value.hint == "give the model's config.json or its folder"


def test_a_config_cannot_be_changed_by_who_looks_it_up() -> None:
    with pytest.raises(TypeError):
        find_model("Qwen3-8B").config["hidden_size"] = 1  # type: ignore[index]


def test_sources_are_text_and_not_addresses() -> None:
    assert "://" not in TABLE.read_text(encoding="utf-8")
