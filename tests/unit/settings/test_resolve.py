"""Final settings: who wins, what excludes what, and where each value came from."""

from __future__ import annotations

import dataclasses
import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from twinpool.errors import ConfigError
from twinpool.memory.running_cap import SlotStrategy
from twinpool.settings.memory import MemoryMode, MemorySettings
from twinpool.settings.resolve import PARTS, SETTINGS, Machine, Resolved, resolve
from twinpool.settings.values import Source, Value
from twinpool.units import DType


def _source(resolved: Resolved, name: str) -> Source:
    return resolved.values[name].source


class TestPrecedence:
    """Flag, then file, then the model's default, then ours."""

    LAYERS = (("flag", "0.1"), ("file", Decimal("0.2")), ("model default", 0.3))

    @pytest.mark.parametrize("first", [0, 1, 2, 3])
    def test_strongest_source_wins_and_is_named(self, first: int) -> None:
        name = "mamba_full_memory_ratio"
        given: dict[str, dict[str, object]] = {"flag": {}, "file": {}, "model default": {}}
        for source, value in self.LAYERS[first:]:
            given[source][name] = value
        resolved = resolve(given["flag"], given["model default"], file=given["file"])
        expected, source = [
            (Fraction(1, 10), Source.FLAG),
            (Fraction(2, 10), Source.FILE),
            (Fraction(3, 10), Source.MODEL_DEFAULT),
            (Fraction(9, 10), Source.DEFAULT),
        ][first]
        assert resolved.memory.mamba_full_memory_ratio == expected
        assert _source(resolved, name) is source

    def test_none_means_not_given(self) -> None:
        resolved = resolve({"port": None}, file={"port": 9})
        assert (resolved.server.port, _source(resolved, "port")) == (9, Source.FILE)

    def test_guessed_defaults_are_marked_as_such(self) -> None:
        assert _source(resolve({}), "mem_fraction_static") is Source.ASSUMED
        assert _source(resolve({}), "page_size") is Source.DEFAULT

    def test_every_setting_has_a_value_and_reaches_its_part(self) -> None:
        resolved = resolve({})
        assert set(resolved.values) == set(SETTINGS)
        for part in PARTS:
            for field in dataclasses.fields(getattr(resolved, part)):
                value = getattr(getattr(resolved, part), field.name)
                assert value == resolved.values[field.name].value

    def test_dashes_and_text_are_accepted(self) -> None:
        resolved = resolve({"--max-queue": "7", "page-size": "16", "pool_memory": "1.5GiB"})
        assert resolved.server.max_queue == 7
        assert resolved.memory.page_size == 16
        assert resolved.memory.pool_memory == 3 * 2**29

    def test_model_defaults_of_a_published_model_are_taken(self) -> None:
        defaults = {
            "mamba_full_memory_ratio": 0.25,
            "mamba_radix_cache_strategy": "extra_buffer_lazy",
        }
        resolved = resolve({"mamba_full_memory_ratio": "0.9"}, defaults)
        assert resolved.memory.memory_mode is MemoryMode.STATIC
        assert resolved.memory.mamba_full_memory_ratio == Fraction(9, 10)
        assert resolved.memory.mamba_radix_cache_strategy is SlotStrategy.EXTRA_BUFFER_LAZY
        assert _source(resolved, "mamba_radix_cache_strategy") is Source.MODEL_DEFAULT


class TestUnknownNames:
    """A name that is no setting is an error with the nearest one."""

    @pytest.mark.parametrize(
        ("given", "near"),
        [
            ("mamba_full_memry_ratio", "mamba_full_memory_ratio"),
            ("--max-mamba-cache-sise", "max_mamba_cache_size"),
            ("prot", "port"),
        ],
    )
    def test_nearest_is_named(self, given: str, near: str) -> None:
        with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
            resolve({given: 1})

    def test_error_says_who_set_it(self) -> None:
        with pytest.raises(ConfigError, match="the settings file set 'colour'"):
            resolve({}, file={"colour": 1})
        with pytest.raises(ConfigError, match="the model's defaults set 'colour'"):
            resolve({}, {"colour": 1})

    def test_nothing_near_lists_all(self) -> None:
        with pytest.raises(ConfigError, match=r"known: model_path, .*enable_metrics"):
            resolve({"zzzzzzzz": 1})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("mamba_max_states_per_path", 0, "--mamba-max-states-per-path: 0 is out of range"),
        ("mamba_max_states_per_path", -2, "--mamba-max-states-per-path: -2 is out of range"),
        ("mamba_full_memory_ratio", "nan", "--mamba-full-memory-ratio: ratio"),
        ("mamba_full_memory_ratio", -1, "--mamba-full-memory-ratio: ratio"),
        ("mamba_full_memory_ratio", 0, "--mamba-full-memory-ratio: ratio"),
        ("mem_fraction_static", 0, "--mem-fraction-static: 0 is not a fraction"),
        ("mem_fraction_static", "1", "--mem-fraction-static: 1 is not a fraction"),
        ("mem_fraction_static", "1.5", "--mem-fraction-static: 1.5 is out of range"),
        ("mem_fraction_static", "inf", "--mem-fraction-static: inf is out of range"),
        ("mem_fraction_static", "half", "--mem-fraction-static: 'half' is not a number"),
        ("pool_memory", "lots", "--pool-memory: 'lots' is not a size"),
        ("pool_memory", 0, "--pool-memory: 0 is out of range"),
        ("pool_memory", "0MiB", "--pool-memory: 0 is out of range"),
        ("pool_memory", "9" * 5000, "--pool-memory: a number of more than 20 digits"),
        ("max_mamba_cache_size", 0, "--max-mamba-cache-size: 0 is out of range"),
        ("max_mamba_cache_size", True, "--max-mamba-cache-size: True is not a whole number"),
        ("max_mamba_cache_size", 1.0, "--max-mamba-cache-size: 1.0 is not a whole number"),
        ("max_total_tokens", "1e6", "--max-total-tokens: '1e6' is not a whole number"),
        ("page_size", "", "--page-size: '' is not a whole number"),
        ("page_size", 10**30, "--page-size: a number of more than 20 digits"),
        ("port", 65536, "--port: 65536 is out of range"),
        ("port", -1, "--port: -1 is out of range"),
        ("kv_cache_dtype", "int3", "--kv-cache-dtype: unknown dtype 'int3'"),
        ("mamba_ssm_dtype", "fp8_e4m3", "--mamba-ssm-dtype: 'fp8_e4m3' cannot be used here"),
        ("dtype", "float16", "--dtype: 'float16' cannot be used here"),
        ("mamba_radix_cache_strategy", "auto", "--mamba-radix-cache-strategy: 'auto'"),
        ("schedule_policy", "random", "--schedule-policy: 'random' is not known"),
        ("radix_eviction_policy", 3, "--radix-eviction-policy: 3 is not known"),
        ("memory_mode", "rubber", "--memory: 'rubber' is not known"),
        ("disable_radix_cache", "yes", "--disable-radix-cache: 'yes' is not true or false"),
        ("host", " ", "--host: ' ' is empty"),
        ("host", ["a"], "--host: ['a'] is not text"),
        ("drain_timeout_s", float("nan"), "--drain-timeout: nan is out of range"),
        ("drain_timeout_s", -1, "--drain-timeout: -1 is out of range"),
        ("drain_timeout_s", True, "--drain-timeout: True is not a number"),
        ("model_path", "", "model_path: '' is empty"),
        ("speculative_num_draft_tokens", -1, "--speculative-num-draft-tokens: -1"),
        ("tp", 0, "--tp: 0 is out of range"),
    ],
)
def test_value_that_cannot_be_used_names_its_flag(name: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({name: value})
    assert says in caught.value.message


class TestSecrets:
    """Keys are never shown."""

    def test_key_is_not_in_rows_or_repr(self) -> None:
        resolved = resolve({"api_keys": ("abc-secret", "other-secret")})
        assert resolved.server.api_keys == ("abc-secret", "other-secret")
        assert "secret" not in repr(resolved.server)
        shown = {row["name"]: row["value"] for row in resolved.rows()}
        assert shown["api_keys"] == "2 set"

    def test_key_is_not_in_an_error(self) -> None:
        with pytest.raises(ConfigError) as caught:
            resolve({"api_keys": "secret\n"})
        assert "secret" not in str(caught.value)
        assert "--api-key" in str(caught.value)


class TestRules:
    """What excludes what, and what follows from what."""

    @pytest.mark.parametrize(
        ("flags", "why"),
        [
            ({"max_mamba_cache_size": 9}, "--max-mamba-cache-size is given"),
            ({"mamba_full_memory_ratio": 0.5}, "--mamba-full-memory-ratio is given"),
            (
                {"mamba_radix_cache_strategy": "extra_buffer"},
                "--mamba-radix-cache-strategy extra_buffer reserves slots",
            ),
            (
                {"speculative_num_draft_tokens": 4},
                "draft states have a buffer of their own",
            ),
        ],
    )
    def test_what_only_a_split_can_hold_makes_memory_static(
        self, flags: dict[str, object], why: str
    ) -> None:
        resolved = resolve(flags)
        assert resolved.values["memory_mode"] == Value(MemoryMode.STATIC, Source.DERIVED, why)
        assert resolved.log_lines == ()
        with pytest.raises(ConfigError, match="--memory elastic has no split") as caught:
            resolve({**flags, "memory_mode": "elastic"})
        assert why in caught.value.message
        assert resolve({**flags, "memory_mode": "static"}).memory.memory_mode is MemoryMode.STATIC

    def test_what_a_model_prefers_of_a_split_leaves_memory_elastic(self) -> None:
        defaults = {
            "mamba_full_memory_ratio": 0.25,
            "mamba_radix_cache_strategy": "extra_buffer_lazy",
        }
        resolved = resolve({}, defaults)
        assert resolved.memory.memory_mode is MemoryMode.ELASTIC
        assert resolved.values["mamba_radix_cache_strategy"] == Value(
            SlotStrategy.DIRECT, Source.DERIVED, "elastic memory holds one state per request"
        )

    def test_no_buffer_turns_overlap_off_and_says_so(self) -> None:
        resolved = resolve({"mamba_radix_cache_strategy": "no_buffer"})
        assert resolved.scheduling.disable_overlap_schedule is True
        assert resolved.values["disable_overlap_schedule"] == Value(
            True, Source.DERIVED, "no_buffer cannot overlap steps"
        )
        assert resolved.log_lines == (
            "disable_overlap_schedule is True instead of False: no_buffer cannot overlap steps",
        )

    def test_no_buffer_with_pages_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="--page-size 16 does not go with"):
            resolve({"mamba_radix_cache_strategy": "no_buffer", "page_size": 16})

    def test_explicit_no_buffer_beats_the_models_page(self) -> None:
        resolved = resolve({"mamba_radix_cache_strategy": "no_buffer"}, {"page_size": 64})
        assert resolved.memory.page_size == 1
        assert _source(resolved, "page_size") is Source.DERIVED

    def test_explicit_page_beats_the_models_no_buffer(self) -> None:
        flags = {"memory_mode": "static", "page_size": 64}
        resolved = resolve(flags, {"mamba_radix_cache_strategy": "no_buffer"})
        assert resolved.memory.page_size == 64
        assert resolved.memory.mamba_radix_cache_strategy is SlotStrategy.DIRECT
        assert resolved.scheduling.disable_overlap_schedule is False

    def test_lazy_without_overlap_is_refused(self) -> None:
        flags = {
            "mamba_radix_cache_strategy": "extra_buffer_lazy",
            "disable_overlap_schedule": True,
        }
        with pytest.raises(ConfigError, match="needs overlap"):
            resolve(flags)

    def test_models_lazy_gives_way_to_explicit_no_overlap(self) -> None:
        resolved = resolve(
            {"memory_mode": "static", "disable_overlap_schedule": True},
            {"mamba_radix_cache_strategy": "extra_buffer_lazy"},
        )
        assert resolved.memory.mamba_radix_cache_strategy is SlotStrategy.DIRECT
        assert len(resolved.log_lines) == 1

    def test_interval_must_be_whole_pages(self) -> None:
        with pytest.raises(ConfigError, match="--mamba-track-interval is 100, not a multiple"):
            resolve({"page_size": 16, "mamba_track_interval": 100})

    def test_default_interval_follows_an_odd_page(self) -> None:
        resolved = resolve({"page_size": 48})
        assert resolved.scheduling.mamba_track_interval == 240
        assert _source(resolved, "mamba_track_interval") is Source.DERIVED

    def test_default_interval_and_chunk_grow_to_a_large_page(self) -> None:
        resolved = resolve({"page_size": 4096})
        assert resolved.scheduling.mamba_track_interval == 4096
        assert resolved.scheduling.chunked_prefill_size == 4096
        assert len(resolved.log_lines) == 2

    def test_interval_covers_the_drafts_of_a_step(self) -> None:
        with pytest.raises(ConfigError, match="below the 8 draft tokens"):
            resolve({"mamba_track_interval": 4, "speculative_num_draft_tokens": 8})

    def test_chunk_must_be_whole_pages(self) -> None:
        with pytest.raises(ConfigError, match="--chunked-prefill-size is 100"):
            resolve({"page_size": 64, "chunked_prefill_size": 100})

    def test_bound_on_rows_becomes_whole_pages(self) -> None:
        resolved = resolve({"page_size": 64, "max_total_tokens": 1000})
        assert resolved.memory.max_total_tokens == 960
        assert "max_total_tokens is 960 instead of 1000" in resolved.log_lines[0]

    def test_bound_below_a_page_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="less than one page of 64"):
            resolve({"page_size": 64, "max_total_tokens": 10})

    def test_pin_and_ratio_together_leave_a_line(self) -> None:
        resolved = resolve({"max_mamba_cache_size": 9, "mamba_full_memory_ratio": 0.5})
        assert "mamba_full_memory_ratio has no effect" in resolved.log_lines[0]

    def test_explicit_ratio_beats_the_models_pin(self) -> None:
        resolved = resolve({"mamba_full_memory_ratio": 0.5}, {"max_mamba_cache_size": 9})
        assert resolved.memory.max_mamba_cache_size is None

    def test_two_sizes_of_one_source_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="both size the pools"):
            resolve({"pool_memory": "1GiB", "mem_fraction_static": "0.5"})

    def test_of_two_sizes_the_flag_beats_the_file(self) -> None:
        by_flag = resolve({"mem_fraction_static": "0.5"}, file={"pool_memory": "1GiB"})
        assert by_flag.memory.pool_memory is None
        by_size = resolve({"pool_memory": "1GiB"}, file={"mem_fraction_static": 0.5})
        assert by_size.memory.pool_memory == 2**30
        assert len(by_flag.log_lines) == len(by_size.log_lines) == 1

    def test_cache_off_names_what_has_no_effect(self) -> None:
        resolved = resolve({"disable_radix_cache": True, "radix_eviction_policy": "lru"})
        assert resolved.log_lines == (
            "radix_eviction_policy has no effect: the prefix cache is off",
        )

    def test_defaults_leave_no_line(self) -> None:
        assert resolve({}).log_lines == ()

    def test_pool_memory_beyond_what_is_free_is_refused(self) -> None:
        machine = Machine(total_bytes=2**31, free_bytes=2**29)
        with pytest.raises(ConfigError, match="--pool-memory asks for 1073741824 bytes"):
            resolve({"pool_memory": "1GiB"}, machine=machine)
        assert resolve({"pool_memory": "512MiB"}, machine=machine)


def test_parts_parse_on_construction() -> None:
    part = MemorySettings(pool_memory="1KiB", kv_cache_dtype="bf16")  # type: ignore[arg-type]
    assert (part.pool_memory, part.kv_cache_dtype) == (1024, DType.BFLOAT16)
    with pytest.raises(ConfigError, match="--page-size"):
        MemorySettings(page_size=0)
    with pytest.raises(TypeError):
        MemorySettings(colour="red")  # type: ignore[call-arg]


def test_parts_and_values_are_frozen() -> None:
    resolved = resolve({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolved.memory.page_size = 2  # type: ignore[misc]
    values: Any = resolved.values
    with pytest.raises(TypeError):
        values["port"] = 1


def test_rows_are_json() -> None:
    rows = list(resolve({"kv_cache_dtype": "bfloat16", "api_keys": "k"}).rows())
    assert json.loads(json.dumps(rows)) == rows
    by_name = {row["name"]: row for row in rows}
    assert by_name["kv_cache_dtype"]["value"] == "bfloat16"
    assert by_name["mamba_full_memory_ratio"]["value"] == 0.9
    assert by_name["memory_mode"] == {
        "name": "memory_mode",
        "flag": "--memory",
        "value": "elastic",
        "source": "default",
        "why": "",
    }


def test_resolving_changes_no_argument_and_repeats() -> None:
    flags: dict[str, object] = {"port": "1", "page_size": None}
    first, second = resolve(flags), resolve(flags)
    assert flags == {"port": "1", "page_size": None}
    assert first == second
