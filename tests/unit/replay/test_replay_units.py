"""Prompts become units: whole blocks are shared, what lies beyond them is nobody else's."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.errors import ConfigError
from twinpool.replay.units import PrivateKeys, Ticket, tickets, unit_of
from twinpool.traces.schema import Session, Turn


def turn(blocks: list[int], input_tokens: int, output_tokens: int = 1, **fields: object) -> Turn:
    return Turn(
        start_s=0.0,
        think_s=0.0,
        blocks=np.array(blocks, dtype=np.int32),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        **fields,  # type: ignore[arg-type]
    )


def units(*turns: Turn, block: int = 64, unit: int = 64, recorded: bool = False) -> list[Ticket]:
    session = Session(name="s", block_tokens=block, turns=turns, namespace="s")
    private = PrivateKeys()
    return list(tickets(session, unit_tokens=unit, private=private, recorded_answers=recorded))


def test_whole_blocks_keep_their_ids_and_the_rest_is_private() -> None:
    (found,) = units(turn([7, 8], 130))
    assert found.prompt.tolist() == [7, 8, -1]
    assert (found.num_whole, found.num_decodes) == (2, 0)


def test_a_partial_block_with_an_id_keeps_it() -> None:
    (found,) = units(turn([7, 8, 9], 130))
    assert found.prompt.tolist() == [7, 8, 9]
    assert found.num_whole == 2


def test_blocks_are_cut_into_equal_parts() -> None:
    (found,) = units(turn([0, 3], 1024), block=512, unit=256)
    assert found.prompt.tolist() == [0, 1, 6, 7]


def test_units_of_a_block_that_is_not_full_are_nobody_elses() -> None:
    # Its id is that of the block as far as it goes: the prompt that continues it has another.
    first, second = units(turn([0, 3, 9], 1100), turn([0, 3, 4, 5], 1800), block=512, unit=64)
    assert first.num_whole == 16
    assert first.prompt.tolist()[:16] == second.prompt.tolist()[:16]
    assert first.prompt[16] != second.prompt[16]
    (recorded, _) = units(
        turn([0, 3], 1100, 500), turn([0, 3, 4, 5], 2048), block=512, unit=64, recorded=True
    )
    assert recorded.num_whole == 17


def test_private_keys_never_meet() -> None:
    first, second = units(turn([1], 100, 200), turn([1], 100, 200))
    private = [key for ticket in (first, second) for key in (*ticket.prompt, *ticket.answer)]
    mine = [key for key in private if key < 0]
    assert len(mine) == len(set(mine)) > 4


def test_a_canned_answer_shares_nothing_with_the_next_turn() -> None:
    first, second = units(turn([1], 64, 129), turn([1, 2, 3, 4], 256))
    assert not set(first.answer) & set(second.prompt)


def test_a_recorded_answer_is_what_the_next_turn_sends_again() -> None:
    first, second = units(turn([1], 64, 129), turn([1, 2, 3, 4], 256), recorded=True)
    assert first.answer.tolist() == [2, 3]
    assert second.prompt.tolist() == [1, 2, 3, 4]


def test_a_recorded_answer_fills_the_prompts_last_block() -> None:
    first, _ = units(turn([1], 100, 100), turn([1, 2, 3, 4], 256), recorded=True)
    assert first.prompt.tolist() == [1, 2]
    assert first.answer.tolist() == [3]
    assert first.num_whole == 1


def test_a_rewritten_prompt_says_nothing_of_the_answer() -> None:
    first, _ = units(turn([1, 2], 128, 65), turn([1, 9, 3], 192), recorded=True)
    assert (first.answer < 0).all()


def test_a_short_answer_still_takes_its_time() -> None:
    (found,) = units(turn([1], 70, 20))
    assert (found.num_decodes, found.due_after(1)) == (1, 19)


@pytest.mark.parametrize("output", [1, 2, 58, 59, 60, 122, 123, 124, 1000])
def test_decodes_are_due_as_their_units_fill(output: int) -> None:
    (found,) = units(turn([1], 70, output))
    due = [found.due_after(decode) for decode in range(1, found.num_decodes + 1)]
    assert due == sorted(due)
    assert not due or due[-1] == output - 1
    # The prompt's last unit has 6 of its 64 tokens; each further unit ends 64 tokens later.
    for decode, tokens in enumerate(due[:-1], start=1):
        assert 70 + tokens == (2 + decode) * 64


@pytest.mark.parametrize(
    ("block", "asked", "expected"), [(64, None, 64), (512, None, 64), (16, None, 16), (100, 20, 20)]
)
def test_units_divide_blocks(block: int, asked: int | None, expected: int) -> None:
    assert unit_of(block, asked) == expected


@pytest.mark.parametrize("asked", [0, 3, 65, 128])
def test_units_that_do_not_divide_blocks_are_refused(asked: int) -> None:
    with pytest.raises(ConfigError, match=f"units of {asked} tokens"):
        unit_of(64, asked)


def test_ids_that_would_wrap_are_refused() -> None:
    with pytest.raises(ConfigError, match="too large to be cut into 8 units"):
        units(turn([2**29], 512), block=512, unit=64)
