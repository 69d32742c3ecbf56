"""The tools that train the default model: faster twins, plain text, rows that begin with a chat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from tools.train_default_model.convolution import causal_convolution
from tools.train_default_model.optimizer import _orthogonal
from tools.train_default_model.rows import Rows
from tools.train_default_model.rst import described, plain_text, questions

DOCUMENT = """
:mod:`sched` --- Event scheduler
================================

.. module:: sched
   :synopsis: General purpose event scheduler.

.. class:: scheduler(timefunc=time.monotonic, \\
                     delayfunc=time.sleep)

   The :class:`scheduler` class defines a *generic* interface to scheduling events.

   .. versionchanged:: 3.3
      Something else.

.. function:: cancel(event)
              cancel_all()

   Remove the event from the queue. See :ref:`the table <queue-table>`.

How are events ordered?
-----------------------

By time, and then by ``priority``.
"""


def test_the_convolution_and_its_gradient_are_torchs() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 9, requires_grad=True)
    weight = torch.randn(5, 4, requires_grad=True)
    ours = causal_convolution(x, weight, None, activation="silu")
    padded = functional.pad(x, (3, 0))
    theirs = functional.silu(functional.conv1d(padded, weight[:, None], groups=5))
    torch.testing.assert_close(ours, theirs)
    towards = torch.randn_like(ours)
    for mine, expected in zip(
        torch.autograd.grad(ours, (x, weight), towards),
        torch.autograd.grad(theirs, (x, weight), towards),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("shape", [(40, 64), (64, 40), (48, 48)])
def test_muon_moves_along_all_directions_alike(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(_orthogonal(torch.randn(shape)))
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_markup_becomes_plain_words() -> None:
    text = "See :func:`~os.path.join`, :ref:`here <x>`, ``a*b*c``, *path* and `PyPI <u>`_."
    assert plain_text(text) == "See `join`, here, `a*b*c`, `path` and PyPI."
    assert plain_text("the ``__init__`` of :pep:`8`") == "the `__init__` of PEP 8"


def test_what_a_document_describes_is_found_with_its_first_words() -> None:
    found = {item.name: item for item in described(DOCUMENT)}
    assert found["sched"].paragraphs == ("General purpose event scheduler.",)
    (words,) = found["scheduler"].paragraphs
    assert words == "The `scheduler` class defines a `generic` interface to scheduling events."
    assert found["cancel"].arguments == "event"
    assert found["cancel"].owner == "sched"
    (question,) = questions(DOCUMENT)
    assert question.name == "How are events ordered?"
    assert question.paragraphs == ("By time, and then by `priority`.",)


def test_rows_of_chats_begin_with_a_chat_and_hold_each_of_them(tmp_path: Path) -> None:
    starts = np.arange(0, 1000, 7)
    np.save(tmp_path / "chat.train.starts.npy", starts)
    np.save(tmp_path / "chat.train.ids.npy", np.arange(1000, dtype=np.uint16))
    rows = Rows(tmp_path, "chat", "train", 50)
    taken = [rows.row(number) for number in range(len(rows))]
    assert {int(row[0]) for row in taken} <= set(starts.tolist())
    seen = {int(start) for row in taken for start in starts if row[0] <= start <= row[-1] - 7}
    assert seen >= set(starts[starts < 940].tolist())
    assert len({int(row[0]) for row in taken}) == len(rows)
