"""Trains the tokenizer and writes every text as token ids.

Run it second. Byte-level BPE over a sample of all kinds; any text round-trips. A chat is written
with the template that is served with the model, so that both agree to the last line end.

    python -m tools.train_default_model.tokenizer WORK
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.train_default_model.corpus import CORE, KINDS, SPLITS
from twinpool.engine.template import ChatTemplate

VOCAB_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIALS = (END_OF_TEXT, TURN_START, TURN_END)

# Kinds whose texts are chats.
CHATS = ("chat", CORE)

TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def main() -> None:
    """Write `tokenizer.json` and, per kind and split, ids and the places where texts begin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="folder that the corpus was written to")
    work = parser.parse_args().work
    tokenizer = train(work)
    tokenizer.save(str(work / "tokenizer.json"))
    for kind in KINDS:
        for split in SPLITS:
            _encode(work, kind, split, tokenizer)
    _encode(work, CORE, "train", tokenizer)


def texts(work: Path, kind: str, split: str) -> Iterator[str]:
    """Yield the texts of a kind; chats as the template writes them."""
    template = ChatTemplate(TEMPLATE.read_text(encoding="utf-8"), {})
    with (work / f"{kind}.{split}.jsonl").open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if kind in CHATS:
                row = template.render(row, add_generation_prompt=False)
            yield row


def train(work: Path) -> Tokenizer:
    """Return a new tokenizer, trained on the training texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIALS],
    )
    rows = (text for kind in KINDS for text in texts(work, kind, "train"))
    tokenizer.train_from_iterator(rows, trainer)
    return tokenizer


def _encode(work: Path, kind: str, split: str, tokenizer: Tokenizer) -> None:
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids: list[int] = []
    starts: list[int] = []
    num_bytes = 0
    for text in texts(work, kind, split):
        starts.append(len(ids))
        ids.extend(tokenizer.encode(text, add_special_tokens=False).ids)
        num_bytes += len(text.encode())
        if kind not in CHATS:
            # A chat ends with a turn; what follows it is another chat.
            ids.append(end)
    np.save(work / f"{kind}.{split}.ids.npy", np.array(ids, np.uint16))
    np.save(work / f"{kind}.{split}.starts.npy", np.array(starts, np.int64))
    print(f"{kind}.{split}: {len(ids):,} tokens, {num_bytes / len(ids):.2f} bytes per token")


if __name__ == "__main__":
    main()
