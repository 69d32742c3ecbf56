"""Tokens per second of a whole engine against transformers, on the same checkpoint in one run.

The engine runs as it serves: scheduler, prefix cache, executor and sampler, without HTTP. Both
sides get the same prompts, greedy, the same number of threads, and are measured in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.model_a import write_model_a
from benchmarks.roofline import Roofline, describe_machine, measure_roofline
from twinpool.engine.assembly import Engine, build_engine
from twinpool.scheduling.events import Arrival
from twinpool.scheduling.sampling import SamplingParams
from twinpool.spec.model import read_model_spec

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Tokens per second of one run; decode counts all requests together."""

    prefill: float
    decode: float


def run_engine(engine: Engine, prompts: list[np.ndarray], num_output: int, first_id: int) -> Rates:
    """Serve prompts of equal length all at once and time both phases."""
    sampling = SamplingParams(max_tokens=num_output, temperature=0.0, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        engine.scheduler.add(Arrival(request_id=first_id + index, prompt=prompt, sampling=sampling))
    waiting_for_first = set(range(first_id, first_id + len(prompts)))
    began = time.perf_counter()
    prefill_s = None
    num_decoded = 0
    while engine.scheduler.has_work:
        plan = engine.scheduler.schedule(0.0)
        assert plan is not None
        events = engine.scheduler.commit(engine.executor.execute(plan), 0.0)
        if waiting_for_first:
            waiting_for_first -= {event.request_id for event in events}
            if not waiting_for_first:
                prefill_s = time.perf_counter() - began
        else:
            num_decoded += len(events)
    assert prefill_s is not None
    total_s = time.perf_counter() - began
    return Rates(
        prefill=sum(len(prompt) for prompt in prompts) / prefill_s,
        decode=num_decoded / (total_s - prefill_s) if num_decoded else 0.0,
    )


def run_transformers(model: Any, prompts: list[np.ndarray], num_output: int) -> Rates:
    """Generate with transformers, all prompts in one batch, and time both phases."""
    ids = torch.from_numpy(np.stack(prompts)).long()
    fixed = {"do_sample": False, "use_cache": True, "pad_token_id": 0}
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        model.generate(ids, max_new_tokens=1, min_new_tokens=1, **fixed)
        prefill_s = time.perf_counter() - began
        began = time.perf_counter()
        model.generate(ids, max_new_tokens=num_output, min_new_tokens=num_output, **fixed)
        total_s = time.perf_counter() - began
    return Rates(
        prefill=ids.numel() / prefill_s,
        decode=len(prompts) * (num_output - 1) / max(1e-9, total_s - prefill_s),
    )


def decode_roofline(
    engine: Engine, weights_read_bytes: int, batch: int, context: int, machine: Roofline
) -> float:
    """Tokens per second if a decode step only had to move its bytes.

    Weights are read once per step, of the embedding table only the rows that are looked up; each
    request's state is read and written, its rows are read.
    """
    facts = engine.info.model_facts
    moved = weights_read_bytes + batch * (
        2 * int(facts["slot_bytes"]) + context * int(facts["row_bytes"])
    )
    return batch * machine.read_bytes_s / moved


def measure(dtype: str, batches: list[int], num_prompt: int, num_output: int, runs: int) -> dict:
    """Measure one dtype; returns figures by batch."""
    machine = measure_roofline()
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model_a(Path(scratch) / "model", DTYPES[dtype])
        engine = build_engine(
            {
                "model_path": str(folder),
                "skip_tokenizer_init": True,
                "pool_memory": "2GiB",
                "max_running_requests": max(batches),
            },
            {},
            lambda message: None,
        )
        # Where the processor has no bfloat16, torch's products in it run at a hundredth of the
        # speed: the peer then gets the same weights in float32, which favours it.
        is_slow = dtype == "bfloat16" and machine.bf16_flops_s < 0.5 * machine.flops_s
        peer_dtype = "float32" if is_slow else dtype
        peer = _load_peer(folder, DTYPES[peer_dtype])
        figures: dict[str, Any] = {"machine": describe_machine(), "dtype": dtype}
        figures["peer_dtype"] = peer_dtype
        figures["roofline"] = asdict(machine)
        spec = read_model_spec(folder)
        weights_read = spec.active_parameters * spec.dtype.itemsize
        rng = np.random.default_rng(0)
        next_id = 0
        for batch in batches:
            ours, theirs = [], []
            for _ in range(runs):
                prompts = [
                    rng.integers(0, 32000, num_prompt).astype(np.int32) for _ in range(batch)
                ]
                ours.append(run_engine(engine, prompts, num_output, next_id))
                next_id += batch
                theirs.append(run_transformers(peer, prompts, num_output))
            figures[f"batch_{batch}"] = _summary(
                ours, theirs, decode_roofline(engine, weights_read, batch, num_prompt, machine)
            )
    return figures


def _load_peer(folder: Path, dtype: torch.dtype) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()


def _summary(ours: list[Rates], theirs: list[Rates], roofline: float) -> dict[str, float]:
    def median(rates: list[Rates], phase: str) -> float:
        return statistics.median(getattr(rate, phase) for rate in rates)

    return {
        "prefill": median(ours, "prefill"),
        "decode": median(ours, "decode"),
        "transformers_prefill": median(theirs, "prefill"),
        "transformers_decode": median(theirs, "decode"),
        "prefill_ratio": median(ours, "prefill") / median(theirs, "prefill"),
        "decode_ratio": median(ours, "decode") / median(theirs, "decode"),
        "decode_roofline": roofline,
        "decode_of_roofline": median(ours, "decode") / roofline,
    }


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Print a table per dtype and return the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dtypes", nargs="+", choices=sorted(DTYPES), default=["bfloat16", "float32"]
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--output", type=int, default=48)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(argv)
    every = {}
    for dtype in wanted.dtypes:
        figures = measure(dtype, wanted.batches, wanted.prompt, wanted.output, wanted.runs)
        every[dtype] = figures
        if not wanted.json:
            _print_table(figures, wanted.batches)
    if wanted.json:
        print(json.dumps(every, indent=2))
    return every


def _print_table(figures: dict[str, Any], batches: list[int]) -> None:
    roofline = figures["roofline"]
    print(
        f"\n{figures['machine']}\n{figures['dtype']}, model A (114 M), greedy, median of the runs"
    )
    print(f"hf: transformers in {figures['peer_dtype']}")
    print(
        f"read {roofline['read_bytes_s'] / 1e9:.1f} GB/s, float32 {roofline['flops_s'] / 1e9:.0f} "
        f"GFLOP/s, bfloat16 {roofline['bf16_flops_s'] / 1e9:.0f} GFLOP/s"
    )
    print(f"{'batch':>5} {'prefill':>9} {'x hf':>6} {'decode':>9} {'x hf':>6} {'of roofline':>12}")
    for batch in batches:
        row = figures[f"batch_{batch}"]
        print(
            f"{batch:>5} {row['prefill']:>9.0f} {row['prefill_ratio']:>6.1f} {row['decode']:>9.0f} "
            f"{row['decode_ratio']:>6.1f} {row['decode_of_roofline']:>12.2f}"
        )


if __name__ == "__main__":
    main()
