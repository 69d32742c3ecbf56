"""Text that is shown is never taken back, and a stop string is never shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fake_engine import EOS
from fake_text import ByteDetokenizer
from twinpool.server.text import GrowingText

LETTERS = st.text("ab.", max_size=12)


def _growing(*stops: str) -> GrowingText:
    return GrowingText(ByteDetokenizer(skip_special_tokens=True), stops)


def test_half_a_character_waits_for_its_other_half() -> None:
    text = _growing()
    assert [text.push(byte) for byte in "é!".encode()] == ["", "é", "!"]


def test_what_is_left_of_a_character_at_the_end_is_a_replacement() -> None:
    text = _growing()
    assert text.push(0xC3) == ""
    assert text.finish(None, None) == "\ufffd"


def test_the_beginning_of_a_stop_string_is_held_until_it_is_clear() -> None:
    text = _growing("END")
    assert [text.push(ord(c)) for c in "aENb"] == ["a", "", "", "ENb"]


def test_the_stop_string_and_what_follows_it_are_left_out() -> None:
    text = _growing("END")
    shown = "".join(text.push(ord(c)) for c in "okEN")
    assert shown + text.finish(ord("D"), "END") == "ok"


def test_held_text_is_shown_when_the_choice_ends_for_another_reason() -> None:
    text = _growing("END")
    shown = "".join(text.push(ord(c)) for c in "okE")
    assert shown + text.finish(ord("N"), None) == "okEN"


def test_a_stop_string_that_the_engine_passed_over_is_shown() -> None:
    text = _growing("ab")
    shown = "".join(text.push(ord(c)) for c in "abxa")
    assert shown + text.finish(ord("b"), "ab") == "abx"


@given(LETTERS, st.text("ab.", min_size=1, max_size=4))
def test_the_shown_text_ends_before_the_first_stop_string_wherever_it_is(
    text: str, stop: str
) -> None:
    growing = _growing(stop)
    shown = ""
    for n, char in enumerate(text):
        if stop in text[: n + 1]:
            shown += growing.finish(ord(char), stop)
            break
        shown += growing.push(ord(char))
    else:
        shown += growing.finish(None, None)
    assert shown == text.partition(stop)[0]


def test_a_stop_string_that_special_tokens_tear_apart_leaves_the_text_as_it_is() -> None:
    text = GrowingText(ByteDetokenizer(skip_special_tokens=False), ("ab",))
    shown = text.push(ord("a")) + text.push(EOS)
    assert shown + text.finish(ord("b"), "ab") == "a<eos>b"
