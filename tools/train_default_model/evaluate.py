"""Loss on the held-out texts, per kind: nats per token and bits per byte.

Every token is predicted once, from those before it in its row of 512. Knows no training; reads a
folder in Hugging Face layout.

    python -m tools.train_default_model.evaluate WORK FOLDER
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AutoModelForCausalLM

from tools.train_default_model.corpus import KINDS
from tools.train_default_model.tokenizer import END_OF_TEXT, SPECIALS

_ROW_TOKENS = 512
_BATCH_ROWS = 8


@dataclass(frozen=True, slots=True)
class Loss:
    """What a kind costs.

    Attributes:
        tokens: How many tokens were predicted.
        nats_per_token: Mean cross entropy.
        bits_per_byte: The same per byte of text, which does not depend on the tokenizer.
    """

    tokens: int
    nats_per_token: float
    bits_per_byte: float


def main() -> None:
    """Print a line of JSON per kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=None, help="of each kind; all when left out")
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).eval()
    widths = token_bytes(Tokenizer.from_file(str(options.folder / "tokenizer.json")))
    for kind in KINDS:
        ids = np.load(options.work / f"{kind}.valid.ids.npy", allow_pickle=False)
        loss = measure(model, ids.astype(np.int64), widths, options.rows)
        print(
            json.dumps(
                {
                    "kind": kind,
                    "tokens": loss.tokens,
                    "nats_per_token": round(loss.nats_per_token, 3),
                    "bits_per_byte": round(loss.bits_per_byte, 3),
                }
            ),
            flush=True,
        )


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """Return the bytes of text that each token stands for."""
    # In a byte-level vocabulary every character is a byte; the specials are written as they are.
    widths = [len(tokenizer.id_to_token(token)) for token in range(tokenizer.get_vocab_size())]
    assert all(tokenizer.token_to_id(text) is not None for text in SPECIALS)
    # The end of a text is in no text.
    widths[tokenizer.token_to_id(END_OF_TEXT)] = 0
    return np.array(widths, np.int64)


@torch.inference_mode()
def measure(
    model: torch.nn.Module, ids: np.ndarray, widths: np.ndarray, max_rows: int | None
) -> Loss:
    """Return the loss on ids.

    Args:
        model: Read only.
        ids: One stream of token ids.
        widths: Bytes of every token.
        max_rows: Evenly spread rows to take; None takes all.
    """
    starts = np.arange(0, len(ids) - _ROW_TOKENS - 1, _ROW_TOKENS)
    if max_rows is not None and max_rows < len(starts):
        starts = starts[np.linspace(0, len(starts) - 1, max_rows).astype(int)]
    nats, tokens, size = 0.0, 0, 0
    for begin in range(0, len(starts), _BATCH_ROWS):
        chosen = starts[begin : begin + _BATCH_ROWS]
        rows = np.stack([ids[start : start + _ROW_TOKENS + 1] for start in chosen])
        batch = torch.from_numpy(rows)
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits.float()
        targets = batch[:, 1:].flatten()
        nats += float(functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum"))
        tokens += targets.numel()
        size += int(widths[rows[:, 1:]].sum())
    return Loss(tokens, nats / tokens, nats / size / math.log(2))


if __name__ == "__main__":
    main()
