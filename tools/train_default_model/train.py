"""Trains the model: a long stretch at a constant rate, then a decay to zero.

Run it third, any number of times: it goes on where the last run stopped. `--steps` may be chosen
anew as long as the decay has not begun, so that a run can always be brought to an end.

    python -m tools.train_default_model.train WORK --steps 1200
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from tools.train_default_model import convolution
from tools.train_default_model import tokenizer as vocabulary
from tools.train_default_model.corpus import CORE, KINDS
from tools.train_default_model.model import build, config
from tools.train_default_model.optimizer import Optimizer
from tools.train_default_model.rows import Mixture, Rows

ROW_TOKENS = 512
_WARM_UP_STEPS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What holds from a step on.

    Attributes:
        begin: The step.
        rows: Rows of a batch.
        level: What the learning rates are multiplied by.
        shares: How likely a row is of each kind.
    """

    begin: int
    rows: int
    level: float
    shares: dict[str, float]


_ALL = {"code": 0.25, "docs": 0.35, "chat": 0.40, CORE: 0.00}
_MIXED = {"code": 0.20, "docs": 0.30, "chat": 0.25, CORE: 0.25}
_WIDE = {"code": 0.30, "docs": 0.35, "chat": 0.25, CORE: 0.10}
_LAST = {"code": 0.20, "docs": 0.25, "chat": 0.25, CORE: 0.30}
_CHATS = {"code": 0.10, "docs": 0.15, "chat": 0.20, CORE: 0.55}
# Chats come last and most, because chats are what the model will be asked for. Batches are small:
# at the first rate noise soon keeps the loss where it is.
_STAGES = (
    Stage(begin=0, rows=8, level=1.0, shares=_ALL),
    Stage(begin=140, rows=8, level=1.0, shares=_MIXED),
    Stage(begin=160, rows=8, level=0.25, shares=_MIXED),
    Stage(begin=330, rows=4, level=0.2, shares=_CHATS),
    Stage(begin=900, rows=8, level=0.3, shares=_WIDE),
    Stage(begin=1500, rows=8, level=0.3, shares=_LAST),
    Stage(begin=2000, rows=8, level=0.3, shares=_WIDE),
    Stage(begin=3100, rows=8, level=0.3, shares=_LAST),
    Stage(begin=3330, rows=8, level=0.3, shares=_WIDE),
    Stage(begin=4090, rows=8, level=0.3, shares=_LAST),
)
_SAVE_EVERY = 10
_CHECKPOINT = "checkpoint.safetensors"


class Training:
    """A model, its optimizer and the place in the data; whole on disk every few steps.

    Args:
        work: The folder of the corpus; the checkpoint lies there, too.
    """

    def __init__(self, work: Path) -> None:
        self._path = work / _CHECKPOINT
        names = Tokenizer.from_file(str(work / "tokenizer.json"))
        self.model = build(
            config(
                names.token_to_id(vocabulary.TURN_END), names.token_to_id(vocabulary.END_OF_TEXT)
            )
        )
        self.optimizer = Optimizer(self.model.named_parameters())
        self.taken = dict.fromkeys((*KINDS, CORE), 0)
        self.seconds = 0.0
        self.tokens = 0
        if self._path.exists():
            self._load()

    def _load(self) -> None:
        with safe_open(str(self._path), framework="pt") as file:
            meta = json.loads(file.metadata()["training"])
            self.model.load_state_dict(
                {name: file.get_tensor(f"model:{name}") for name in self.model.state_dict()}
            )
            for name, tensor in self.optimizer.state.items():
                tensor.copy_(file.get_tensor(f"state:{name}"))
        self.optimizer.step_number = meta["step"]
        self.taken |= meta["taken"]
        self.seconds = meta["seconds"]
        self.tokens = meta["tokens"]

    def gradients(self, ids: Tensor, workers: Executor, parts: int) -> list[float]:
        """Leave the gradient of the mean loss in the parameters.

        Whole rows go to workers that compute with one thread each: two workers take three quarters
        of the time of two threads that meet after every product.

        Args:
            ids: `[B, T + 1]`, int64.
            workers: What the parts run on.
            parts: How many parts the rows are cut into.

        Returns:
            The loss of every row.
        """
        parameters = list(self.model.parameters())

        def part(rows: Tensor) -> tuple[list[float], tuple[Tensor, ...]]:
            logits = self.model(input_ids=rows[:, :-1], use_cache=False).logits
            targets = rows[:, 1:].flatten()
            flat = functional.cross_entropy(logits.flatten(0, 1), targets, reduction="none")
            losses = flat.view(len(rows), -1).mean(1)
            return losses.tolist(), torch.autograd.grad(losses.sum() / len(ids), parameters)

        found = list(workers.map(part, ids.chunk(parts)))
        # In the order of the rows, whoever was ready first: sums are the same every time.
        for parameter, *gradients in zip(
            parameters, *(gradients for _, gradients in found), strict=True
        ):
            parameter.grad = torch.stack(gradients).sum(0)
        return [loss for losses, _ in found for loss in losses]

    def save(self) -> None:
        """Write the checkpoint under another name and rename it: it is whole or the old one."""
        tensors = {f"model:{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"state:{name}": value for name, value in self.optimizer.state.items()}
        meta = {
            "step": self.optimizer.step_number,
            "taken": self.taken,
            "seconds": self.seconds,
            "tokens": self.tokens,
        }
        fresh = self._path.with_suffix(".new")
        save_file(tensors, str(fresh), metadata={"training": json.dumps(meta)})
        os.replace(fresh, self._path)


def stage_of(step: int) -> Stage:
    """Return what holds at a step."""
    return next(stage for stage in reversed(_STAGES) if step >= stage.begin)


def factor(step: int, steps: int, decay_steps: int) -> float:
    """Return what learning rates are multiplied by: warm-up, the stage's level, linear decay."""
    warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
    left = (steps - step) / decay_steps
    return max(0.0, stage_of(step).level * min(warm, left))


def main() -> None:
    """Train until `--steps`, and write a line of JSON every few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--decay-steps", type=int, default=300, help="of them, at a falling rate")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    workers = ThreadPoolExecutor(options.threads)
    convolution.install()
    training = Training(options.work)
    training.model.train()
    sources = {kind: Rows(options.work, kind, "train", ROW_TOKENS) for kind in (*KINDS, CORE)}
    mixture = Mixture(sources)
    seen: dict[str, list[float]] = defaultdict(list)
    while (step := training.optimizer.step_number) < options.steps:
        begin = time.monotonic()
        rate, stage = factor(step, options.steps, options.decay_steps), stage_of(step)
        kinds, rows = mixture.draw(step, stage.rows, stage.shares, training.taken)
        losses = training.gradients(torch.from_numpy(rows), workers, 2 * options.threads)
        training.optimizer.step(rate, workers)
        training.tokens += stage.rows * ROW_TOKENS
        training.seconds += time.monotonic() - begin
        for kind, value in zip(kinds, losses, strict=True):
            seen[kind].append(value)
        if training.optimizer.step_number % _SAVE_EVERY == 0:
            training.save()
            _report(training, rate, seen)
    training.save()


def _report(training: Training, rate: float, seen: dict[str, list[float]]) -> None:
    line = {
        "step": training.optimizer.step_number,
        "tokens": training.tokens,
        "seconds": round(training.seconds),
        "rate": round(rate, 3),
        **{kind: round(sum(values) / len(values), 3) for kind, values in sorted(seen.items())},
    }
    seen.clear()
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
