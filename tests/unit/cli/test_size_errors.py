"""Every bad input of `twinpool size` ends in one error that names the number and what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinpool.cli.main import run
from twinpool.cli.output import ExitCode

CONFIG = str(Path(__file__).parents[2] / "data" / "configs" / "Qwen--Qwen3.5-35B-A3B.json")
MEMORY = ("--memory-after-weights", "20GiB")

BAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ratio that is no number": (
        ("--mamba-full-memory-ratio", "nan", *MEMORY),
        ("--mamba-full-memory-ratio", "'nan'", "above 0"),
    ),
    "ratio of zero": (
        ("--mamba-full-memory-ratio", "0", *MEMORY),
        ("is 0, which leaves no state slot", "above 0"),
    ),
    "negative ratio": (("--mamba-full-memory-ratio=-1", *MEMORY), ("'-1'", "above 0")),
    "endless ratio": (("--mamba-full-memory-ratio", "inf", *MEMORY), ("'inf'", "above 0")),
    "pin larger than memory": (
        ("--max-mamba-cache-size", "999999", *MEMORY),
        ("999999 state slots", "20.0 GiB", "pin at most 332 slots"),
    ),
    "pin below one request": (
        ("--max-mamba-cache-size", "3", "--mamba-radix-cache-strategy", "extra_buffer", *MEMORY),
        ("holds 3 slots", "reserves 5", "--max-mamba-cache-size"),
    ),
    "pin of zero": (("--max-mamba-cache-size", "0", *MEMORY), ("0 is out of range", "1 to")),
    "negative memory": (("--memory-after-weights=-5",), ("'-5' is not a size", "62.4GiB")),
    "memory that is no number": (("--memory-after-weights", "nan"), ("'nan' is not a size",)),
    "memory without a slot": (
        ("--memory-after-weights", "20"),
        ("state share of 20 B", "2 state slots of 61.4 MiB", "more memory"),
    ),
    "no memory at all": ((), ("nothing says how much memory", "--memory-after-weights")),
    "memory twice": ((*MEMORY, "--gpu", "H100"), ("--memory-after-weights and --gpu",)),
    "weights larger than the GPU": (("--gpu", "L4"), ("the weights take", "22.5 GiB", "--tp")),
    "strategy that is unknown": (
        ("--mamba-radix-cache-strategy", "eager", *MEMORY),
        ("'eager' is not known", "extra_buffer_lazy"),
    ),
    "strategy without its overlap": (
        (
            *("--mamba-radix-cache-strategy", "extra_buffer_lazy"),
            *("--disable-overlap-schedule", *MEMORY),
        ),
        ("needs overlap", "leave out"),
    ),
    "strategy in a pipeline": (
        ("--mamba-radix-cache-strategy", "extra_buffer_lazy", "--pp", "2", *MEMORY),
        ("needs overlap", "--pp"),
    ),
    "exact strategy with pages": (
        ("--mamba-radix-cache-strategy", "no_buffer", "--page-size", "16", *MEMORY),
        ("page", "leave out"),
    ),
    "heads that do not split": (("--tp", "3", *MEMORY), ("is 16", "3 ranks", "--tp")),
    "more stages than layers": (("--pp", "50", *MEMORY), ("40 layers", "50 pipeline stages")),
    "GPUs that do not make a copy": (
        ("--tp", "2", "--num-gpus", "3", *MEMORY),
        ("--num-gpus is 3", "multiple of 2"),
    ),
    "dtype that is unknown": (("--kv-cache-dtype", "int4", *MEMORY), ("'int4'", "fp8_e4m3")),
    "state dtype of rows": (("--mamba-ssm-dtype", "fp8", *MEMORY), ("fp8", "bfloat16")),
    "GPU that is unknown": (("--gpu", "H10"), ("'H10'", "H100")),
    "context of zero": (("--average-context", "0", *MEMORY), ("0 is out of range",)),
    "context that is no number": (("--average-context", "8k", *MEMORY), ("'8k'",)),
    "sessions without a context": (("--sessions", "4", *MEMORY), ("needs --session-context",)),
    "running without sessions": (("--running", "4", *MEMORY), ("--running needs --sessions",)),
    "no sessions": (("--sessions", "0", "--session-context", "9", *MEMORY), ("0 is out of range",)),
    "flag that is unknown": (("--tensor", "2", *MEMORY), ("No such option", "--tensor")),
}


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run(["size", *arguments])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert code in (ExitCode.FAILED, ExitCode.USAGE)
    return code, captured.err


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_bad_input_says_which_number_and_what_to_change(
    capsys: pytest.CaptureFixture[str], name: str, form: tuple[str, ...]
) -> None:
    arguments, expected = BAD[name]
    _, text = fails(capsys, CONFIG, *arguments, *form)
    assert text.startswith("error: ")
    assert "\nhint: " in text
    assert "Traceback" not in text
    for part in expected:
        assert part in text


def test_unknown_model_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = fails(capsys, "Qwen3.5-27", *MEMORY)
    assert code == ExitCode.USAGE
    assert "Qwen3.5-27B" in text


def test_missing_file_is_not_taken_for_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = fails(capsys, "no/such/config.json", *MEMORY)
    assert "no/such/config.json does not exist" in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": "qwen9"}, "model_type"),
        ({"num_hidden_layers": "four"}, "num_hidden_layers"),
        ({"layer_types": ["linear_attention", "whirl"]}, "layer_types"),
        ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim"),
        ({"head_dim": None}, "head_dim"),
        ({"dtype": "int3"}, "dtype"),
    ],
)
def test_config_that_is_not_understood_names_the_field(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    config = {"model_type": "qwen3_5_text", "num_hidden_layers": 2, **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, text = fails(capsys, str(tmp_path), *MEMORY)
    assert expected in text


def test_plain_model_has_no_state_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", "Llama-3.1-8B", *MEMORY, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state_slots"], found["state_bytes_per_slot"]) == (0, 0)
    assert found["token_equiv"] is None
    assert found["ratio"] is None
    assert any("no linear attention" in note for note in found["notes"])


def test_model_without_attention_has_no_rows_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["size", "falcon-mamba-7b", *MEMORY, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kv_tokens"], found["kv_bytes_per_token"]) == (0, 0)
    assert found["binding"] == "state"
    assert any("no full attention" in note for note in found["notes"])


def test_weight_files_of_a_folder_are_added_up(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5_text"}))
    for name, length in (("a.safetensors", 1000), ("b.safetensors", 234)):
        (tmp_path / name).write_bytes(bytes(length))
    assert run(["size", str(tmp_path), "--gpu", "L4", "--json"]) == 0
    weights = json.loads(capsys.readouterr().out)["provenance"]["weights_bytes"]
    assert (weights["value"], weights["source"]) == (1234, "measured")


def test_lists_of_names_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", "--models"]) == 0
    assert "Qwen/Qwen3.5-27B" in capsys.readouterr().out
    assert run(["size", "--gpus"]) == 0
    assert "H200" in capsys.readouterr().out


def test_flags_to_paste_give_the_plan_again(capsys: pytest.CaptureFixture[str]) -> None:
    workload = ("--sessions", "40", "--session-context", "9000", "--running", "6")
    assert run(["size", CONFIG, *MEMORY, *workload, "--tp", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    flags = found["flags"]["twinpool"].replace("--pool-memory", "--memory-after-weights").split()
    assert run(["size", CONFIG, *flags, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["state_slots"] == found["workload"]["state_slots"]
    assert again["kv_tokens"] == found["workload"]["kv_tokens"]
    assert again["max_running_requests"] == 6
