"""Logprobs as both routes write them."""

from __future__ import annotations

from fake_text import ByteTokenizer
from twinpool.scheduling.plan import TokenLogprobs
from twinpool.server.logprobs import CompletionLogprobsForm, TokenNames, chat_logprobs, joined

NAMES = TokenNames(ByteTokenizer())
A, E1, E2 = 97, *"é".encode()


def test_a_token_that_is_no_text_by_itself_is_shown_as_bytes() -> None:
    assert [NAMES.name(token) for token in (A, E1, 256)] == ["a", "bytes:\\xc3", "<eos>"]


def test_without_a_tokenizer_a_token_is_its_id() -> None:
    assert TokenNames(None).name(7) == "token_id:7"
    (entry,) = chat_logprobs([TokenLogprobs(7, -1.0)], TokenNames(None)).content
    assert entry.bytes is None


def test_chat_form_gives_bytes_and_the_likely_tokens() -> None:
    (entry,) = chat_logprobs([TokenLogprobs(E1, -0.5, ((E1, -0.5), (A, -2.0)))], NAMES).content
    assert (entry.token, entry.logprob, entry.bytes) == ("bytes:\\xc3", -0.5, [0xC3])
    assert [(top.token, top.logprob) for top in entry.top_logprobs] == [
        ("bytes:\\xc3", -0.5),
        ("a", -2.0),
    ]


def test_offsets_count_characters_and_go_on_from_part_to_part() -> None:
    form = CompletionLogprobsForm(NAMES)
    first = form.part([TokenLogprobs(token, -1.0) for token in (A, E1, E2)])
    second = form.part([TokenLogprobs(A, -1.0)])
    assert joined([first, second]).text_offset == [0, 1, 1, 2]


def test_the_first_token_of_a_prompt_has_no_logprob() -> None:
    form = CompletionLogprobsForm(NAMES).prompt([A, E1], [TokenLogprobs(E1, -3.0)])
    assert form.token_logprobs == [None, -3.0]
    assert form.top_logprobs == [None, {"bytes:\\xc3": -3.0}]


def test_the_chosen_token_is_among_the_likely_even_when_it_is_not() -> None:
    form = CompletionLogprobsForm(NAMES).part([TokenLogprobs(A, -9.0, ((98, -0.1),))])
    assert form.top_logprobs == [{"b": -0.1, "a": -9.0}]


def test_infinity_becomes_a_number_that_json_has() -> None:
    form = CompletionLogprobsForm(NAMES).part([TokenLogprobs(A, float("-inf"))])
    assert form.token_logprobs == [-9999.0]
