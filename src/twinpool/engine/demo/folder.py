"""The demo model's folder in the user's cache: built once, checked at every start.

Knows nothing of what the weights mean. A folder is whole or absent: it is written under another
name, sealed by a manifest of checksums and renamed; a lock keeps two processes from building twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from twinpool.engine.demo import vocabulary
from twinpool.engine.demo.weights import DemoShape, build_weights
from twinpool.errors import ConfigError

# Raise it when anything that is written changes: an old folder then simply stays unused.
DEMO_VERSION = "1"

_MANIFEST = "manifest.json"
_VOCAB_MULTIPLE = 64


def default_cache_dir() -> Path:
    """Return the folder that holds the demo model: `$XDG_CACHE_HOME/twinpool`, or in `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path is to be ignored.
    base = Path(root) if os.path.isabs(root) else Path.home() / ".cache"
    return base / "twinpool"


def ensure(cache_dir: Path | None = None, progress: Callable[[str], None] | None = None) -> Path:
    """Return the folder of the demo model, and build it first where it is not there or not whole.

    Args:
        cache_dir: Where to keep it; None is `default_cache_dir()`.
        progress: Told in one line what is being done, when something is done.

    Returns:
        The folder, in Hugging Face layout: weights, config, tokenizer and chat template.

    Raises:
        ConfigError: If the folder cannot be written.

    Changes:
        Files in `cache_dir`. Safe for any number of processes at once.

    Cost:
        Some 30 ms when it is there, about a second to build.
    """
    root = default_cache_dir() if cache_dir is None else cache_dir
    target = root / f"demo-{DEMO_VERSION}"
    if _is_whole(target):
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"demo-{DEMO_VERSION}.lock"):
            # Another process may have built it while this one waited for the lock.
            if not _is_whole(target):
                _rebuild(target, progress or (lambda line: None))
    except OSError as error:
        raise ConfigError(
            f"the demo model cannot be written to {root}: {error}",
            hint="set XDG_CACHE_HOME to a folder that can be written, or name a MODEL folder",
        ) from error
    return target


def _rebuild(target: Path, progress: Callable[[str], None]) -> None:
    progress(f"building the demo model (untrained weights) in {target}")
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _write_model(fresh / "new")
        if target.exists():
            # What is broken goes aside whole: nobody ever reads half of one and half of the other.
            os.rename(target, fresh / "old")
        os.rename(fresh / "new", target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _write_model(folder: Path) -> None:
    folder.mkdir()
    tokenizer = vocabulary.build_tokenizer()
    words = vocabulary.word_ids(tokenizer)
    end, end_of_text = vocabulary.end_ids(tokenizer)
    # A few rows more than tokens, as real checkpoints have them.
    vocab_size = -(-(tokenizer.get_vocab_size() + 1) // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE
    shape = DemoShape(vocab_size=vocab_size)
    ends = [end, end_of_text]
    _write_json(folder / "config.json", shape.config(eos_token_ids=ends))
    _write_json(folder / "generation_config.json", {"eos_token_id": ends, "do_sample": True})
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(shape))
    (folder / "chat_template.jinja").write_text(vocabulary.CHAT_TEMPLATE, encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False), encoding="utf-8")

    from safetensors.numpy import save_file  # only a build needs it

    weights = build_weights(shape, words=words, end=end)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    files = sorted(path for path in folder.iterdir())
    _write_json(folder / _MANIFEST, {path.name: _checksum(path) for path in files})
    for path in folder.iterdir():
        _flush_to_disk(path)


def _tokenizer_config(shape: DemoShape) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": vocabulary.TURN_END,
        "pad_token": vocabulary.END_OF_TEXT,
        "model_max_length": shape.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }


def _is_whole(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        return bool(manifest) and all(
            _checksum(folder / name) == checksum for name, checksum in manifest.items()
        )
    except (OSError, ValueError, AttributeError):
        return False


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The lock file stays: removing it would let two processes lock two different files.
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
