"""Templates and tokenizers for tests: the default model's template, small vocabularies."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from twinpool.engine import default_model
from twinpool.engine.tokenizer import Tokenizer

CHECKPOINT = Path(default_model.__file__).with_name("checkpoint")
CHATML_TEMPLATE = (CHECKPOINT / "chat_template.jinja").read_text(encoding="utf-8")

_WORDS = """
    the dog walked home river and wood sea fox a house of stone light hill old long kind brief
    system user assistant there what is it so quite you are
"""

# Drops the reasoning of all turns but the last, and opens a turn with <think>, as thinking models'
# templates do. Content is trimmed.
THINKING_TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{%- endif %}
{{- tools | tojson }}{{ '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'system' %}{% if not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}{% endif %}
{%- elif message.role == 'assistant' %}
{%- set content = message.content | trim %}
{%- if '</think>' in content %}
{%- set reasoning = content.split('</think>')[0] %}
{%- set content = content.split('</think>')[-1] | trim %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and reasoning %}{{ reasoning + '</think>\\n' }}{% endif %}
{{- content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is not defined or enable_thinking %}{{ '<think>\\n' }}{% endif %}
{%- endif %}"""

# No special token anywhere: the tokenizer finds no cut.
PLAIN_TEMPLATE = """\
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""

# Insists on user and assistant taking turns, and on a user first.
STRICT_TEMPLATE = """\
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate user/assistant') }}
{%- endif %}
{{- '<|im_start|>' + message.content + '<|im_end|>' }}
{%- endfor %}"""


@functools.cache
def small_backend() -> str:
    """Return the `tokenizer.json` of a byte-level BPE in which a few words are one token each."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[
            AddedToken(text, special=True, normalized=False)
            for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        ],
    )
    backend.train_from_iterator([f" {word}" for word in _WORDS.split()] * 2, trainer)
    return backend.to_str()


def write_tokenizer(folder: Path, backend: str | None = None, **config: Any) -> Path:
    """Write a checkpoint folder's tokenizer files.

    Args:
        folder: Made if need be.
        backend: Text of `tokenizer.json`; None takes the small one.
        config: Fields of `tokenizer_config.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(backend or small_backend(), encoding="utf-8")
    fields = {"eos_token": "<|im_end|>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")
    return folder


def small_tokenizer(folder: Path, template: str | None = None, **config: Any) -> Tokenizer:
    """Return the small tokenizer, with the default model's template or another."""
    chat_template = CHATML_TEMPLATE if template is None else template
    return Tokenizer.from_folder(write_tokenizer(folder, chat_template=chat_template, **config))


def sentencepiece_backend() -> str:
    """Return a tokenizer of the SentencePiece kind: U+2581 for spaces, bytes as <0x0A>."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", *"abcdehlorwtn.,é", "\u2581a", "\u2581th", "th", "\u2581the", "\u2581w"]
    merges = [("\u2581", "a"), ("t", "h"), ("\u2581", "th"), ("\u2581th", "e"), ("\u2581", "w")]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: place for place, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in ("<s>", "</s>")])
    return backend.to_str()


def word_backend() -> str:
    """Return a tokenizer of whole words, whose decoder puts spaces between them."""
    words = ["[UNK]", "[SEP]", "the", "dog", "##s", "run", "."]
    backend = tokenizers.Tokenizer(
        models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[SEP]"])
    return backend.to_str()
