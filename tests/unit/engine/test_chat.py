"""Chat prompts: what transformers renders, and boundaries that hold for later chats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from text_models import (
    CHATML_TEMPLATE,
    PLAIN_TEMPLATE,
    STRICT_TEMPLATE,
    THINKING_TEMPLATE,
    sentencepiece_backend,
    small_tokenizer,
    write_tokenizer,
)
from twinpool.engine.boundaries import BoundaryFinder
from twinpool.engine.chat import ChatRenderer
from twinpool.engine.template import ChatTemplate
from twinpool.engine.tokenizer import Tokenizer
from twinpool.errors import ConfigError

SYSTEM = {"role": "system", "content": "You are kind and brief."}
HELLO = {"role": "user", "content": "Hello there"}
ANSWER = {"role": "assistant", "content": "hmm</think> the dog walked home"}
AGAIN = {"role": "user", "content": "Quite so, and 7 of them?"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"a": [1, "é"]}}}

CHATS = {
    "one turn": [HELLO],
    "system": [SYSTEM, HELLO],
    "two turns": [SYSTEM, HELLO, ANSWER, AGAIN],
    "odd texts": [SYSTEM, {"role": "user", "content": "\n\n <|im_end|> 🎉 <|im_start|>user\nQ"}],
    "system alone": [SYSTEM],
    "answer last": [SYSTEM, HELLO, ANSWER],
    "long": [SYSTEM, {"role": "user", "content": "word salad " * 400}, ANSWER, AGAIN],
}
TEMPLATES = {
    "chatml": CHATML_TEMPLATE,
    "thinking": THINKING_TEMPLATE,
    "plain": PLAIN_TEMPLATE,
}


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _renderer(folder: Path, template: str, **config: Any) -> tuple[ChatRenderer, Tokenizer]:
    tokenizer = small_tokenizer(folder, template, **config)
    return ChatRenderer(tokenizer), tokenizer


def _tokens(tokenizer: Tokenizer, template: str, chat: list[dict[str, Any]], **more: Any) -> Any:
    text = ChatTemplate(template, tokenizer.special_tokens).render(
        chat, add_generation_prompt=True, **more
    )
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["plain", "tools"])
def test_boundaries_are_what_brute_force_finds(
    tmp_path: Path, template: str, chat: list[dict[str, Any]], tools: Any
) -> None:
    """The text is tokenised in pieces; here every chat is tokenised whole."""
    renderer, tokenizer = _renderer(tmp_path, template)
    found = renderer.render(chat, add_generation_prompt=True, tools=tools)
    whole = _tokens(tokenizer, template, chat, tools=tools)
    assert found.tokens == whole

    def depth(*others: list[dict[str, Any]]) -> int:
        texts = [_tokens(tokenizer, template, other, tools=tools) for other in others]
        return min(len(whole) - 1, *(_shared(whole, text) for text in texts))

    first, second = "Quite so", "7 of them"
    preamble = [message for message in chat[:1] if message["role"] == "system"]
    expected = set()
    if preamble or tools:
        expected.add(
            depth(*([*preamble, {"role": "user", "content": words}] for words in (first, second)))
        )
    turns = [
        [*chat, {"role": "assistant", "content": words}, {"role": "user", "content": words}]
        for words in (first, second)
    ]
    expected.add(depth(*turns))
    assert found.boundaries == tuple(sorted(expected - {0}))


@pytest.mark.parametrize("template", [CHATML_TEMPLATE, THINKING_TEMPLATE])
def test_another_chat_with_the_same_system_prompt_shares_the_first_boundary(
    tmp_path: Path, template: str
) -> None:
    renderer, _ = _renderer(tmp_path, template)
    one = renderer.render([SYSTEM, HELLO, ANSWER, AGAIN], add_generation_prompt=True)
    other = renderer.render(
        [SYSTEM, {"role": "user", "content": "What is it"}], add_generation_prompt=True
    )
    assert one.boundaries[0] == other.boundaries[0]
    assert _shared(one.tokens, other.tokens) == one.boundaries[0]


@pytest.mark.parametrize("template", [CHATML_TEMPLATE, THINKING_TEMPLATE])
def test_the_next_turn_sends_the_last_boundary_again(tmp_path: Path, template: str) -> None:
    renderer, _ = _renderer(tmp_path, template)
    now = renderer.render([SYSTEM, HELLO], add_generation_prompt=True)
    turn = [SYSTEM, HELLO, ANSWER, AGAIN]
    later = renderer.render(turn, add_generation_prompt=True)
    assert _shared(now.tokens, later.tokens) >= now.boundaries[-1]
    # A thinking template opens a turn with what it drops later; the boundary lies before that.
    is_thinking = template is THINKING_TEMPLATE
    assert ("<think>" in now.text) == is_thinking
    assert _shared(now.tokens, later.tokens) == now.boundaries[-1] + (0 if is_thinking else 1)


def test_without_system_prompt_and_tools_there_is_no_preamble(tmp_path: Path) -> None:
    renderer, _ = _renderer(tmp_path, CHATML_TEMPLATE)
    assert len(renderer.render([HELLO], add_generation_prompt=True).boundaries) == 1
    assert len(renderer.render([SYSTEM, HELLO], add_generation_prompt=True).boundaries) == 2


def test_a_user_who_writes_like_a_stand_in_moves_no_boundary(tmp_path: Path) -> None:
    renderer, _ = _renderer(tmp_path, CHATML_TEMPLATE)
    depths = {
        renderer.render(
            [SYSTEM, {"role": "user", "content": words}], add_generation_prompt=True
        ).boundaries[0]
        for words in ("Hello", "Quite so", "Quite so and more", "7 of them", "7")
    }
    assert len(depths) == 1


def test_a_template_that_refuses_the_stand_ins_gives_no_boundary(tmp_path: Path) -> None:
    renderer, _ = _renderer(tmp_path, STRICT_TEMPLATE)
    assert renderer.render([HELLO, ANSWER], add_generation_prompt=True).boundaries == ()
    assert renderer.render([HELLO], add_generation_prompt=True).boundaries != ()


def test_template_variables_reach_the_template(tmp_path: Path) -> None:
    renderer, _ = _renderer(tmp_path, THINKING_TEMPLATE)
    for thinking in (True, False):
        chat = renderer.render([HELLO], add_generation_prompt=True, enable_thinking=thinking)
        assert chat.text.endswith("<think>\n") == thinking


def test_without_generation_prompt_the_turn_stays_closed(tmp_path: Path) -> None:
    renderer, tokenizer = _renderer(tmp_path, CHATML_TEMPLATE)
    chat = renderer.render([HELLO], add_generation_prompt=False)
    assert chat.text == "<|im_start|>user\nHello there<|im_end|>\n"
    assert chat.boundaries == (len(chat.tokens) - 1,)
    assert tokenizer.encode(chat.text) == chat.tokens


def test_tools_take_the_template_that_is_made_for_them(tmp_path: Path) -> None:
    named = [
        {"name": "default", "template": "D"},
        {"name": "tool_use", "template": "T{{ tools | length }}"},
    ]
    renderer = ChatRenderer(Tokenizer.from_folder(write_tokenizer(tmp_path, chat_template=named)))
    assert renderer.render([HELLO], add_generation_prompt=True).text == "D"
    assert renderer.render([HELLO], add_generation_prompt=True, tools=[TOOL]).text == "T1"


def test_a_model_without_template_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        ChatRenderer(Tokenizer.from_folder(write_tokenizer(tmp_path)))


def test_a_short_prompt_has_no_boundary_outside_it(tmp_path: Path) -> None:
    for template in ("", "x", "{{ messages[0].content }}"):
        renderer, _ = _renderer(tmp_path, template)
        chat = renderer.render([SYSTEM, HELLO], add_generation_prompt=True)
        assert all(1 <= depth < len(chat.tokens) for depth in chat.boundaries)


def test_a_prompt_is_tokenised_once_and_only_tails_again(tmp_path: Path) -> None:
    class Counting:
        def __init__(self, inner: Tokenizer) -> None:
            self.inner, self.num_chars = inner, 0
            self.added_tokens = inner.added_tokens

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            self.num_chars += len(text)
            return self.inner.encode(text, add_special_tokens=add_special_tokens)

    tokenizer = small_tokenizer(tmp_path)
    counting = Counting(tokenizer)
    prompt = "<|im_start|>system\n" + "long " * 5000 + "<|im_end|>\n<|im_start|>user\n"
    finder = BoundaryFinder(counting)  # type: ignore[arg-type]
    ids, depths = finder.tokenize(prompt + "Hi", [[prompt + "Q", prompt + "7"]])
    assert ids == tokenizer.encode(prompt + "Hi")
    assert depths == (len(tokenizer.encode(prompt)),)
    assert counting.num_chars < len(prompt) + 200


@pytest.mark.parametrize(
    ("listed", "is_cut"),
    [
        ({"special": True}, True),
        ({"special": False}, False),
        ({"special": True, "lstrip": True}, False),
        ({"special": True, "rstrip": True}, False),
        ({"special": True, "single_word": True}, False),
        ({"special": True, "normalized": True}, False),
    ],
)
def test_only_tokens_that_cut_anywhere_are_anchors(
    tmp_path: Path, listed: dict[str, Any], is_cut: bool
) -> None:
    """Whether it is one or not, the answer is that of tokenising everything."""
    base = small_tokenizer(tmp_path / "base").vocab_size
    tokenizer = small_tokenizer(
        tmp_path / "more", added_tokens_decoder={str(base): {"content": "<x>", **listed}}
    )
    finder = BoundaryFinder(tokenizer)
    assert (finder._cut is not None and finder._cut.fullmatch("<x>") is not None) == is_cut
    for prompt, other in (("a <x> bcd", "a <x> bce"), ("a<x>", "a<x>b"), ("<x> \n", "<x> \n\n")):
        ids, depths = finder.tokenize(prompt, [[other]])
        assert ids == tokenizer.encode(prompt)
        shared = min(_shared(ids, tokenizer.encode(other)), len(ids) - 1)
        assert depths == ((shared,) if shared else ())


def test_tokens_that_another_token_hides_are_no_anchors(tmp_path: Path) -> None:
    base = small_tokenizer(tmp_path / "base").vocab_size
    contents = ("<a>", "x<a>y", "-b-", "b-c", "<ok>")
    listed = {str(base + n): {"content": text, "special": True} for n, text in enumerate(contents)}
    finder = BoundaryFinder(small_tokenizer(tmp_path / "more", added_tokens_decoder=listed))
    assert finder._cut is not None
    assert [text for text in contents if finder._cut.fullmatch(text)] == ["x<a>y", "<ok>"]


def test_a_sentencepiece_vocabulary_has_right_boundaries_too(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path, sentencepiece_backend(), eos_token="</s>", bos_token="<s>")
    tokenizer = Tokenizer.from_folder(folder)
    finder = BoundaryFinder(tokenizer)
    for prompt, other in (("<s>the dog</s>the a", "<s>the dog</s>the w"), ("the a", "the w")):
        ids, depths = finder.tokenize(prompt, [[other]])
        assert ids == tokenizer.encode(prompt, add_special_tokens=False)
        theirs = tokenizer.encode(other, add_special_tokens=False)
        assert depths == (min(_shared(ids, theirs), len(ids) - 1),)


# ------------------------------------------------------------------------------ templates


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(
        write_tokenizer(tmp_path_factory.mktemp("oracle"), bos_token="<|endoftext|>")
    )


SNIPPETS = {
    "chatml": CHATML_TEMPLATE,
    "thinking": THINKING_TEMPLATE,
    "plain": PLAIN_TEMPLATE,
    "tojson": "{{ messages | tojson }}{{ tools | tojson(indent=2) }}",
    "special": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}",
    "loop": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}"
    "{% endfor %}",
    "generation": "{% generation %}a{{ messages[0].content }}{% endgeneration %}b",
    "blocks": "  {% if true %}\n  x\n  {% endif %}\ny\n",
    "undefined": "[{{ nothing }}]{{ messages[0].nothing }}",
}


@pytest.mark.parametrize("source", SNIPPETS.values(), ids=SNIPPETS)
@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_rendering_equals_transformers(
    oracle: Any, source: str, chat: list[dict[str, Any]]
) -> None:
    names = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    for tools in (None, [TOOL]):
        mine = ChatTemplate(source, names).render(chat, add_generation_prompt=True, tools=tools)
        theirs = oracle.apply_chat_template(
            chat, tools, chat_template=source, tokenize=False, add_generation_prompt=True
        )
        assert mine == theirs


def _render(source: str, *messages: dict[str, Any], **more: Any) -> str:
    return ChatTemplate(source, {}).render(list(messages), add_generation_prompt=True, **more)


def test_a_refusal_of_the_template_is_told_with_its_words() -> None:
    with pytest.raises(ConfigError, match="System message must be at the beginning"):
        _render(THINKING_TEMPLATE, HELLO, SYSTEM)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages[7].content.x }}",
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set x.y = 1 %}",
        "{{ lipsum.__globals__.os }}",
    ],
)
def test_whatever_a_template_raises_is_a_config_error(source: str) -> None:
    with pytest.raises(ConfigError, match="chat template"):
        _render(source, HELLO)


def test_a_template_that_is_none_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        ChatTemplate("{% for %}", {})


def test_text_parts_follow_each_other() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert _render("{{ messages[0].content }}", {"role": "user", "content": parts}) == "ab"


@pytest.mark.parametrize(
    "content", [7, {"text": "a"}, ["a"], [{"type": "image_url"}], [{"type": "text"}], [[]]]
)
def test_content_that_is_no_text_is_refused(content: object) -> None:
    with pytest.raises(ConfigError, match=r"messages\[1\]\.content"):
        _render("", HELLO, {"role": "user", "content": content})


@pytest.mark.parametrize("message", [{}, {"role": 1}, "user", None, {"content": "a"}])
def test_a_message_without_role_is_refused(message: Any) -> None:
    with pytest.raises(ConfigError, match=r"messages\[0\] has no role"):
        _render("", message)


def test_keys_of_none_count_as_absent() -> None:
    source = "{{ messages[0].content is defined }}{{ messages[0].tool_calls is defined }}"
    message = {"role": "assistant", "content": None, "tool_calls": None}
    assert _render(source, message) == "FalseFalse"


def test_reasoning_goes_by_every_name() -> None:
    source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
    for name in ("reasoning", "reasoning_content", "thinking"):
        assert _render(source, {"role": "assistant", "content": "", name: "R"}) == "RR"


def _call(arguments: object) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


def test_arguments_become_a_mapping_unless_the_template_prints_the_text() -> None:
    text = json.dumps({"a": 1}, separators=(",", ":"))
    items = "{% for k, v in messages[0].tool_calls[0].function.arguments | items %}{{ k }}{{ v }}"
    assert _render(items + "{% endfor %}", _call(text)) == "a1"
    verbatim = (
        "{% set f = messages[0].tool_calls[0].function %}"
        "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}"
        "{% endif %}"
    )
    assert _render(verbatim, _call(text)) == text
    assert _render(items + "{% endfor %}", _call({"b": 2})) == "b2"


@pytest.mark.parametrize("arguments", ["{", "[1]", "3"])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    with pytest.raises(ConfigError, match="arguments is no JSON"):
        _render("", _call(arguments))


def test_the_callers_messages_stay_as_they_are() -> None:
    message = _call('{"a": 1}') | {"reasoning": "x", "content": [{"type": "text", "text": "t"}]}
    before = json.dumps(message)
    _render(CHATML_TEMPLATE, message)
    assert json.dumps(message) == before


def test_the_default_template_does_not_trim_and_refuses_unknown_roles() -> None:
    text = _render(CHATML_TEMPLATE, {"role": "user", "content": "  hi \n"})
    assert text == "<|im_start|>user\n  hi \n<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(ConfigError, match="unknown role: wizard"):
        _render(CHATML_TEMPLATE, {"role": "wizard", "content": "x"})


def test_the_default_template_shows_tools_and_calls() -> None:
    text = _render(CHATML_TEMPLATE, SYSTEM, _call('{"a": 1}'), tools=[TOOL])
    assert text.startswith("<|im_start|>system\nYou are kind and brief.\n\nYou may call")
    assert text.count("<|im_start|>system") == 1
    assert '<tool_call>{"name": "look", "arguments": {"a": 1}}</tool_call>' in text
