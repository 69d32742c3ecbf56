"""Chats of the default model with and without the prefix cache: the same answers, less computed.

The model ends its answers itself, and each turn sends all of the chat again, as clients do. The
engine runs as it serves, without HTTP; both runs take the same questions.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from benchmarks.roofline import describe_machine
from twinpool.engine import default_model
from twinpool.engine.assembly import Engine, build_engine
from twinpool.engine.chat import ChatRenderer
from twinpool.engine.tokenizer import Tokenizer
from twinpool.scheduling.events import Arrival
from twinpool.scheduling.sampling import SamplingParams

SYSTEM = "You know the standard library of Python."
FIRST = (
    "What is a generator?",
    "What is the json module for?",
    "What does os.path.join do?",
    "What is a decorator?",
    "How do I use shutil.copyfile?",
    "What does math.floor do?",
    "What is the csv module for?",
    "Repeat lighthouse_7",
)
LATER = ("And what is an iterator?", "What about `len`?", "And ValueError?", "Thank you")
MAX_ANSWER_TOKENS = 120

Chat = list[dict[str, str]]


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Print a line per run and their ratio; fail if an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1 + len(LATER))
    parser.add_argument("--runs", type=int, default=3, help="in turn; the best counts")
    options = parser.parse_args(argv)
    print(describe_machine())
    with_cache, without = [], []
    for _ in range(options.runs):
        with_cache.append(_run(options.turns, disable_radix_cache=False))
        without.append(_run(options.turns, disable_radix_cache=True))
        assert with_cache[-1][0] == without[-1][0], "the prefix cache changes an answer"
    cached, plain = (
        min((figures for _, figures in runs), key=lambda figures: figures["seconds"])
        for runs in (with_cache, without)
    )
    for name, run in (("prefix cache", cached), ("none", plain)):
        print(
            f"{name:<14} {run['prompt_tokens']:7,.0f} prompt tokens, {run['computed']:7,.0f} of "
            f"them computed, {run['answer_tokens']:6,.0f} answered, {run['seconds']:6.2f} s"
        )
    ratio = plain["seconds"] / cached["seconds"]
    print(f"the same {len(FIRST)} chats; with the cache {ratio:.2f} times as fast")
    return {**cached, "ratio": ratio}


def _run(num_turns: int, **flags: Any) -> tuple[list[Chat], dict[str, float]]:
    engine = build_engine(flags, {}, lambda message: None)
    tokenizer = Tokenizer.from_folder(default_model.folder())
    renderer = ChatRenderer(tokenizer)
    chats: list[Chat] = [[{"role": "system", "content": SYSTEM}] for _ in FIRST]
    began = time.perf_counter()
    num_answered = 0
    for turn in range(num_turns):
        for chat, first in zip(chats, FIRST, strict=True):
            question = LATER[(turn - 1) % len(LATER)] if turn else first
            chat.append({"role": "user", "content": question})
        answers = _answer(engine, renderer, chats, first_id=turn * len(chats))
        for chat, tokens in zip(chats, answers, strict=True):
            chat.append({"role": "assistant", "content": tokenizer.decode(tokens)})
            num_answered += len(tokens)
    seconds = time.perf_counter() - began
    snapshot = engine.scheduler.snapshot()
    return chats, {
        "prompt_tokens": snapshot.prompt_tokens,
        "computed": snapshot.prompt_tokens - snapshot.cached_tokens,
        "answer_tokens": num_answered,
        "seconds": seconds,
    }


def _answer(
    engine: Engine, renderer: ChatRenderer, chats: list[Chat], first_id: int
) -> list[list[int]]:
    sampling = SamplingParams(max_tokens=MAX_ANSWER_TOKENS, temperature=0.0)
    answers: dict[int, list[int]] = {}
    for index, chat in enumerate(chats):
        prompt = renderer.render(chat, add_generation_prompt=True)
        answers[first_id + index] = []
        engine.scheduler.add(
            Arrival(
                request_id=first_id + index,
                prompt=np.array(prompt.tokens, np.int32),
                sampling=sampling,
                boundaries=prompt.boundaries,
                eos_token_ids=engine.info.eos_token_ids,
            )
        )
    while engine.scheduler.has_work:
        plan = engine.scheduler.schedule(0.0)
        assert plan is not None
        for event in engine.scheduler.commit(engine.executor.execute(plan), 0.0):
            if event.token is not None:
                answers[event.request_id].append(event.token)
            if event.finish_reason is not None:
                engine.executor.forget(event.request_id)
    return list(answers.values())


if __name__ == "__main__":
    main()
