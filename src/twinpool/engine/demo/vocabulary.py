"""The demo model's tokenizer: byte-level BPE over the lexicon, with ChatML specials.

Knows nothing of weights. Every lexicon word with a space before it is one token, and a text made
of such tokens encodes back to the same ids: an answer that a client sends again is found in the
prefix cache to the last token.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from twinpool.engine.demo import lexicon

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIALS = (END_OF_TEXT, TURN_START, TURN_END)

# Plain ChatML. Content is not trimmed, so that what a client sends back is what it got.
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}
{{- messages[0].content + '\\n\\n' }}
{%- endif %}
{{- 'You may call these tools:' }}
{%- for tool in tools %}
{{- '\\n' + (tool | tojson) }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
{{- raise_exception('unknown role: ' + message.role) }}
{%- endif %}
{%- if not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# More merges than the lexicon can use up: training stops when no pair is left.
_MAX_TOKENS = 65536


def build_tokenizer() -> Tokenizer:
    """Train the tokenizer on the lexicon.

    Returns:
        A new tokenizer; the same one every time. Any UTF-8 text round-trips, by bytes if need be.

    Cost:
        Some 50 ms.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_MAX_TOKENS,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIALS],
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def word_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the lexicon words with a space before them, rising.

    Args:
        tokenizer: From `build_tokenizer`; read only.
    """
    ids = []
    for word in lexicon.words():
        encoded = tokenizer.encode(f" {word}", add_special_tokens=False).ids
        assert len(encoded) == 1, f"{word!r} is {len(encoded)} tokens"
        ids.append(encoded[0])
    return sorted(ids)


def end_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the ids of the end of a turn and of the end of a text.

    Args:
        tokenizer: From `build_tokenizer`; read only.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return vocabulary[TURN_END], vocabulary[END_OF_TEXT]


def _corpus() -> list[str]:
    # Twice, because a merge must be seen twice; sentences once more would merge whole phrases'
    # rare spellings, which costs vocabulary and gives nothing.
    spaced = [f" {word}" for word in lexicon.words()]
    return [*spaced, *spaced, *lexicon.sentences()]
