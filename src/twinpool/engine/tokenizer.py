"""A checkpoint's tokenizer: text to token ids and back, and what single tokens stand for.

Knows no model and no request, needs neither torch nor transformers, and runs no code from the
checkpoint. It is loaded in the front and in the engine process alike.

Special tokens in a text are parsed wherever they stand, as `transformers` does: `<|im_end|>` in a
prompt, or in the content of a chat message, becomes that token. A server whose users must not be
able to write control tokens has to strip them before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from twinpool.engine.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from twinpool.engine.tokenizer_files import TokenizerFiles, read_tokenizer_files
from twinpool.errors import ConfigError


class Tokenizer:
    """Text to token ids and back.

    Args:
        backend: The `tokenizers` object; owned from now on.
        files: What lies beside it.

    Attributes:
        special_tokens: Text of `bos_token`, `eos_token` and so on.
        chat_templates: Template sources by name; empty when the model has none.
        eos_token_ids: The model's end tokens: those of its generation config (or else its config),
            then the tokenizer's own.
        vocab_size: One more than the highest token id.
    """

    def __init__(self, backend: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
        self._backend = backend
        # What a request needs is decided there, not left from training.
        backend.no_truncation()
        backend.no_padding()
        self.special_tokens = dict(files.special_tokens)
        self.chat_templates = dict(files.chat_templates)
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self.eos_token_ids = self._end_tokens(files)
        self._added: dict[int, Any] = dict(backend.get_added_tokens_decoder())
        self._special = frozenset(token for token, entry in self._added.items() if entry.special)
        self._byte_of = _byte_of_char() if _is_byte_level(backend) else None
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Load the tokenizer of a checkpoint folder.

        Raises:
            ConfigError: If there is no `tokenizer.json`, or a file cannot be used.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                f"{folder} has no tokenizer.json",
                hint="copy the checkpoint's tokenizer files, or pass --skip-tokenizer-init to "
                "serve token-id prompts only",
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(
                f"{path} cannot be used: {error}",
                hint="copy the checkpoint's file again; it must be one that `tokenizers` "
                f"{tokenizers.__version__} reads",
            ) from error
        files = read_tokenizer_files(folder)
        _add_missing(backend, files, path)
        return cls(backend, files)

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that decoding can leave out."""
        return self._special

    @property
    def added_tokens(self) -> Mapping[int, Any]:
        """Tokens that are found in a text before anything else, by id; read only."""
        return self._added

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: Any text; special tokens in it are parsed.
            add_special_tokens: Whether the tokenizer's own template adds tokens, such as a BOS.

        Raises:
            ConfigError: If the text holds lone surrogates, which are no characters.
        """
        try:
            # As a batch of one: `encode` keeps the interpreter's lock for as long as it runs, and a
            # long prompt would stop every other request of the front.
            batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            ids: list[int] = batch[0].ids
        except TypeError:
            _refuse_surrogates(text)
            raise
        return ids

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; bytes that are no UTF-8 become U+FFFD.

        Args:
            tokens: Any ids of 0 or more; those without a token add nothing.
            skip_special_tokens: Whether special tokens are left out.
        """
        text: str = self._backend.decode(list(tokens), skip_special_tokens=skip_special_tokens)
        return text

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """Return a fresh incremental detokenizer.

        Args:
            skip_special_tokens: Whether special tokens are left out of the text.
        """
        skipped = self._special if skip_special_tokens else frozenset()
        if self._byte_of is not None:
            return ByteDetokenizer(self.token_bytes, skipped)
        return WindowDetokenizer(
            lambda ids: self.decode(ids, skip_special_tokens=skip_special_tokens), skipped
        )

    def token_id(self, text: str) -> int | None:
        """Return the id of a token by its exact text in the vocabulary; None when there is none."""
        token: int | None = self._backend.token_to_id(text)
        return token

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for; its name for a special token.

        Args:
            token: An id; one without a token has no bytes.
        """
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._spell(token)
        return found

    def token_text(self, token: int) -> str:
        """Return the text of one token by itself; bytes that are no UTF-8 become U+FFFD."""
        return self.token_bytes(token).decode(errors="replace")

    def _spell(self, token: int) -> bytes:
        name: str | None = self._backend.id_to_token(token)
        if name is None:
            return b""
        if self._byte_of is None:
            return _spell_piece(name) if token not in self._added else name.encode()
        # The decoder takes a token whose characters all stand for bytes as those bytes, and any
        # other as it is.
        mapped = [self._byte_of.get(char, -1) for char in name]
        return name.encode() if -1 in mapped else bytes(mapped)

    def _end_tokens(self, files: TokenizerFiles) -> tuple[int, ...]:
        own = files.special_tokens.get("eos_token")
        token = None if own is None else self.token_id(own)
        return tuple(dict.fromkeys((*files.end_token_ids, *(() if token is None else (token,)))))


def _refuse_surrogates(text: str) -> None:
    """Raise ConfigError when a text holds half of a surrogate pair, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the text holds a lone surrogate at character {error.start}",
            hint="send valid Unicode",
        ) from error


def _add_missing(backend: tokenizers.Tokenizer, files: TokenizerFiles, path: Path) -> None:
    """Add tokens that only `tokenizer_config.json` lists.

    Raises:
        ConfigError: If one of them does not get the id that it is listed with.
    """
    for entry in files.added_tokens:
        if backend.token_to_id(entry.content) is None:
            token = tokenizers.AddedToken(
                entry.content,
                single_word=entry.single_word,
                lstrip=entry.lstrip,
                rstrip=entry.rstrip,
                normalized=entry.normalized,
                special=entry.special,
            )
            (backend.add_special_tokens if entry.special else backend.add_tokens)([token])
        found = backend.token_to_id(entry.content)
        if found != entry.id:
            raise ConfigError(
                f"{entry.content!r} has id {found} in {path} and {entry.id} in "
                "tokenizer_config.json",
                hint="the files come from different checkpoints; copy both again",
            )


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    """Return True when decoding is: every token as bytes, all bytes as UTF-8, and no more."""
    if backend.decoder is None:
        return False
    # Its state is its part of tokenizer.json; the whole file would be megabytes.
    decoder = json.loads(backend.decoder.__getstate__())
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    return bool(kinds) and kinds[0] == "ByteLevel" and set(kinds) <= {"ByteLevel", "Fuse"}


def _byte_of_char() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Source:
        `bytes_to_unicode` of GPT-2's encoder.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


def _spell_piece(name: str) -> bytes:
    # SentencePiece spellings: one byte as <0x0A>, a space as U+2581.
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes([int(name[3:5], 16)])
        except ValueError:
            return name.encode()
    return name.replace("\u2581", " ").encode()
