"""`twinpool size MODEL`: both pools of a model on given memory, without loading anything.

Turns flags into a size request and prints the plan; knows no arithmetic.
"""

from __future__ import annotations

from typing import Any

import click

from twinpool.cli.model_argument import NamedModel, read_model
from twinpool.cli.options import given, settings_options
from twinpool.cli.output import columns, print_json
from twinpool.cli.paste import pastes
from twinpool.cli.size_json import size_document
from twinpool.cli.size_report import size_report
from twinpool.cli.workload_options import BYTES, COUNT, COUNT_OR_NONE, workload_of, workload_options
from twinpool.settings.budget import MemoryAsk
from twinpool.settings.memory import MemorySettings
from twinpool.settings.model import ModelSettings
from twinpool.settings.scheduling import SchedulingSettings
from twinpool.settings.size_plan import SizeRequest, plan_size
from twinpool.settings.values import Source, Value
from twinpool.spec.catalog import CATALOG
from twinpool.spec.hardware import HARDWARE, find_hardware
from twinpool.units import format_bytes

SIZING_SETTINGS = frozenset(
    {
        "mem_fraction_static",
        "mamba_full_memory_ratio",
        "max_mamba_cache_size",
        "max_total_tokens",
        "page_size",
        "kv_cache_dtype",
        "mamba_ssm_dtype",
        "mamba_radix_cache_strategy",
        "disable_radix_cache",
        "max_running_requests",
        "disable_overlap_schedule",
        "chunked_prefill_size",
        "tp",
        "pp",
        "speculative_num_draft_tokens",
        "dtype",
    }
)


# The first character tells click to keep the lines as they are.
EXAMPLES = """\b
Examples:
  twinpool size Qwen3.5-35B-A3B --gpu H100 --num-gpus 2 --average-context 8192
  twinpool size ./config.json --memory-after-weights 62.4GiB --tp 2 \\
      --sessions 48 --session-context 160000 --running 24
"""


def _list_models(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the model catalog and leave."""
    if not value or ctx.resilient_parsing:
        return
    rows = [
        [entry.name, f"{entry.parameters / 1e9:.1f} B", format_bytes(entry.weights_bytes)]
        for entry in CATALOG
    ]
    click.echo(columns(rows, right=(1, 2), indent=0))
    ctx.exit()


def _list_hardware(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the hardware catalog and leave."""
    if not value or ctx.resilient_parsing:
        return
    rows = []
    for entry in HARDWARE:
        memory = "-" if entry.memory_bytes is None else format_bytes(entry.memory_bytes)
        rate = entry.bandwidth_bytes_per_s
        rows.append([entry.name, memory, "-" if rate is None else f"{rate / 1e12:.2f} TB/s"])
    click.echo(columns(rows, right=(1, 2), indent=0))
    ctx.exit()


@click.command(epilog=EXAMPLES)
@click.argument("model", metavar="MODEL")
@click.option(
    "--memory-after-weights",
    type=BYTES,
    metavar="BYTES",
    help="Memory per rank for both pools, for example 62.4GiB; replaces --gpu.",
)
@click.option("--gpu", metavar="NAME", help="GPU by its catalog name, see --gpus.")
@click.option(
    "--num-gpus", type=COUNT, metavar="N", help="GPUs; without --tp the model is split over all."
)
@click.option(
    "--weights-bytes",
    type=BYTES,
    metavar="BYTES",
    help="Weights of the whole model, for example 54GB; default: the files', the catalog's, "
    "or counted from the config.",
)
@settings_options(
    MemorySettings,
    SchedulingSettings,
    ModelSettings,
    only=SIZING_SETTINGS,
    without_default=("mem_fraction_static", "chunked_prefill_size"),
)
@click.option(
    "--draft-layers",
    type=COUNT_OR_NONE,
    metavar="N",
    help="Draft layers that write KV rows; default: the model's own, with draft tokens.",
)
@workload_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--models",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_models,
    help="List the models that are known by name.",
)
@click.option(
    "--gpus",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_hardware,
    help="List the hardware that is known by name.",
)
def size(model: str, as_json: bool, **options: Any) -> None:
    """Size the state pool and the KV pool of a model.

    MODEL is a config.json, a folder with one, or a name from --models. Nothing is loaded and no GPU
    is needed. Settings that the model's guide prefers apply unless a flag is given.
    """
    named = read_model(model)
    plan = plan_size(size_request(named, options))
    flags = pastes(plan)
    if as_json:
        print_json(size_document(named, plan, flags))
    else:
        click.echo(size_report(named, plan, flags))


def size_request(named: NamedModel, options: dict[str, Any]) -> SizeRequest:
    """Turn options into a request.

    Args:
        named: The model.
        options: Click's values by option name.

    Raises:
        ConfigError: If options do not go together, or the hardware is not known.
    """
    flags = given({name: options[name] for name in SIZING_SETTINGS})
    num_gpus = options["num_gpus"]
    if num_gpus is not None and "tp" not in flags and "pp" not in flags:
        flags["tp"] = num_gpus
    given_weights = options["weights_bytes"]
    gpu = options["gpu"]
    return SizeRequest(
        spec=named.spec,
        memory=MemoryAsk(
            after_weights_bytes=options["memory_after_weights"],
            hardware=None if gpu is None else find_hardware(gpu),
            num_gpus=num_gpus,
            weights=named.weights
            if given_weights is None
            else Value(given_weights, Source.FLAG, "--weights-bytes"),
        ),
        flags=flags,
        draft_layers=options["draft_layers"],
        average_context=options["average_context"],
        workload=workload_of(options),
    )
