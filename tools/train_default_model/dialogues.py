"""Chats made of what the documentation says: questions about names, and words to be repeated.

Knows no files and no tokens. All draws come from the generator that the caller seeds.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator, Sequence

from tools.train_default_model.rst import Described

Chat = list[dict[str, str]]

_SYSTEMS = (
    "You are a helpful assistant.",
    "You answer questions about Python.",
    "You answer in one line.",
    "Answer briefly.",
    "You know the standard library of Python.",
)
_ASK_NAME = (
    "What does {name} do?",
    "What does `{name}` do?",
    "What is {name}?",
    "Explain {name}.",
    "Tell me about `{name}`.",
    "How do I use {name}?",
    "What is {name} for?",
    "And {name}?",
    "What about `{name}`?",
)
_ASK_MODULE = (
    "What is the {name} module for?",
    "What is the module {name}?",
    "What does the module `{name}` do?",
    "Tell me about the {name} module.",
)
_ASK_TERM = (
    "What is {article} {name}?",
    "What does {name} mean?",
    "Explain the term {name}.",
    "And what is {article} {name}?",
    "What is meant by {name}?",
)
_OPENINGS = (
    ("Hello", "Hello! What would you like to know about Python?"),
    ("Hi", "Hi! How can I help you today?"),
    ("Hello!", "Hello! How can I help you today?"),
    ("Good morning", "Good morning! What would you like to know?"),
    ("Can you help me?", "Yes. What would you like to know?"),
    ("Who are you?", "I am a small language model. I write about Python, and I know nothing."),
    ("What can you do?", "I can write a few sentences about Python. They may be wrong."),
)
_CLOSINGS = (
    ("Thank you", "You are welcome."),
    ("Thanks!", "You are welcome. Is there anything else I can help you with?"),
    ("Bye", "Goodbye!"),
    ("That is all.", "Thank you. Goodbye!"),
)
_KINDS = {
    "function": "function",
    "class": "class",
    "exception": "exception",
    "method": "method",
    "classmethod": "class method",
    "staticmethod": "static method",
    "attribute": "attribute",
    "data": "name",
    "decorator": "decorator",
    "macro": "macro",
    "opcode": "instruction",
    "type": "type",
}
_ASK_REPEAT = (
    "Repeat {word}",
    "Say {word} again.",
    "Write the word {word}.",
    "Please repeat: {word}",
    "The name is {word}. What is the name?",
    "Remember {word}. What should you remember?",
)


def describing_chats(
    groups: Sequence[Sequence[Described]], rng: random.Random, *, small_talk: float, brief: bool
) -> Iterator[Chat]:
    """Yield chats in which each of the names is asked for once.

    Args:
        groups: Names that belong together, such as those of one document; chats keep to a group.
        rng: Draws the order, the wording and the length of the chats.
        small_talk: How often a chat begins with a greeting, and how often it ends with thanks.
        brief: Whether an answer is one paragraph and nothing else.
    """
    for group in groups:
        items = list(group)
        rng.shuffle(items)
        while items:
            chat = _opened(rng, small_talk)
            for _ in range(min(len(items), rng.choice((1, 1, 2, 2, 3, 4)))):
                chat += _exchange(items.pop(), rng, brief)
            if rng.random() < small_talk:
                chat += _turns(*rng.choice(_CLOSINGS))
            yield chat


def repeating_chats(words: Sequence[str], count: int, rng: random.Random) -> Iterator[Chat]:
    """Yield chats whose answers are found in the chat itself.

    Args:
        words: Identifiers to take from; half of what is asked for is made up of letters.
        count: How many chats.
        rng: Draws everything.
    """
    for _ in range(count):
        chat: Chat = []
        for _ in range(rng.choice((1, 2, 3))):
            word = rng.choice(words) if rng.random() < 0.5 else _made_up(rng)
            chat += _turns(rng.choice(_ASK_REPEAT).format(word=word), word)
            if rng.random() < 0.4:
                chat += _turns(rng.choice(("Again.", "Once more.", "What was it?")), word)
        yield chat


def _opened(rng: random.Random, small_talk: float) -> Chat:
    chat: Chat = []
    if rng.random() < 0.25:
        chat.append({"role": "system", "content": rng.choice(_SYSTEMS)})
    if rng.random() < small_talk:
        chat += _turns(*rng.choice(_OPENINGS))
    return chat


def _turns(question: str, answer: str) -> Chat:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _exchange(item: Described, rng: random.Random, brief: bool) -> Chat:
    answer = item.paragraphs[0]
    for paragraph in item.paragraphs[1:]:
        if brief or len(answer) > 250 or rng.random() < 0.5:
            break
        answer += "\n\n" + paragraph
    if item.kind == "question":
        return _turns(item.name, answer)
    if item.kind == "term":
        article = "an" if item.name[0].lower() in "aeiou" else "a"
        form = rng.choice(_ASK_TERM)
        return _turns(form.format(name=item.name, article=article), answer)
    if item.kind == "module":
        form = rng.choice(_ASK_MODULE)
        return _turns(form.format(name=item.name), _introduced(item, answer, rng, brief))
    dotted = item.kind in ("function", "class") or rng.random() < 0.5
    name = f"{item.owner}.{item.name}" if item.owner and dotted else item.name
    return _turns(rng.choice(_ASK_NAME).format(name=name), _introduced(item, answer, rng, brief))


def _introduced(item: Described, answer: str, rng: random.Random, brief: bool) -> str:
    """Return the answer, most often after a sentence that says what the name is."""
    if brief:
        return answer
    draw = rng.random()
    if item.kind == "module":
        return f"The module `{item.name}`: {answer}" if draw < 0.5 else answer
    kind = _KINDS[item.kind]
    if draw < 0.35 and item.owner:
        return f"`{item.name}` is {_article(kind)} {kind} of `{item.owner}`. {answer}"
    if draw < 0.55 and item.arguments:
        return f"`{item.name}({item.arguments})`: {answer}"
    return answer


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _made_up(rng: random.Random) -> str:
    parts = [
        "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 6)))
        for _ in range(rng.randint(1, 3))
    ]
    word = rng.choice(("_", "-", "")).join(parts)
    return word + str(rng.randint(0, 999)) if rng.random() < 0.4 else word
