"""The demo model: whole or absent, the same every time, and speaking words that come back."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from twinpool.engine import demo
from twinpool.engine.chat import ChatRenderer
from twinpool.engine.demo import lexicon, vocabulary
from twinpool.engine.tokenizer import Tokenizer
from twinpool.errors import ConfigError

TURN = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo.ensure(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def words(tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.encode(f" {word}")[0] for word in lexicon.words()]


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def _config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


# --------------------------------------------------------------------------------- folder


def test_it_is_the_same_in_every_process(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from twinpool.engine import demo;"
        "demo.ensure(pathlib.Path(sys.argv[1]))"
    )
    for number in range(2):
        environment = {**os.environ, "PYTHONHASHSEED": str(number), "RAYON_NUM_THREADS": "1"}
        cache = tmp_path / str(number)
        subprocess.run([sys.executable, "-c", code, str(cache)], check=True, env=environment)
        assert _digests(cache / folder.name) == _digests(folder)


def test_it_is_built_once(folder: Path) -> None:
    lines: list[str] = []
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert demo.ensure(folder.parent, lines.append) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert lines == []


def test_building_says_that_the_weights_are_untrained(tmp_path: Path) -> None:
    lines: list[str] = []
    demo.ensure(tmp_path, lines.append)
    assert len(lines) == 1
    assert "untrained" in lines[0]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "no manifest", "half manifest"])
def test_what_is_broken_is_built_again(folder: Path, tmp_path: Path, damage: str) -> None:
    broken = demo.ensure(tmp_path)
    weights, manifest = broken / "model.safetensors", broken / "manifest.json"
    if damage == "flip":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    elif damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "remove":
        (broken / "tokenizer.json").unlink()
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[:100])
    assert demo.ensure(tmp_path) == broken
    assert _digests(broken) == _digests(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-1", "demo-1.lock"]


def test_processes_that_start_together_get_one_whole_model(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from twinpool.engine import demo;"
        "demo.ensure(pathlib.Path(sys.argv[1]), lambda line: print('built'))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert "".join(outputs).count("built") == 1
    assert _digests(tmp_path / folder.name) == _digests(folder)


def test_a_builder_that_died_leaves_nothing_that_counts(folder: Path, tmp_path: Path) -> None:
    half = tmp_path / ".demo-1-dead" / "new"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{")
    assert _digests(demo.ensure(tmp_path)) == _digests(folder)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert demo.default_cache_dir() == Path("/somewhere/twinpool")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert demo.default_cache_dir() == Path.home() / ".cache" / "twinpool"


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        demo.ensure(tmp_path / "file" / "below")
    assert "XDG_CACHE_HOME" in caught.value.hint


# ------------------------------------------------------------------------------ tokenizer


def test_every_word_of_the_lexicon_is_one_token(tokenizer: Tokenizer) -> None:
    assert len(lexicon.words()) > 500
    for word in lexicon.words():
        (token,) = tokenizer.encode(f" {word}")
        assert tokenizer.token_text(token) == f" {word}"


def test_the_lexicon_is_plain_words() -> None:
    assert all(word.isascii() and word.isalpha() and word.islower() for word in lexicon.words())


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_an_answer_encodes_back_to_its_tokens(data: st.DataObject) -> None:
    tokenizer, words = _loaded()
    ids = data.draw(st.lists(st.sampled_from(words), min_size=1, max_size=30))
    text = tokenizer.decode(ids)
    assert tokenizer.encode(text) == ids
    before, after = tokenizer.encode(TURN), tokenizer.encode("<|im_end|>\n")
    assert tokenizer.encode(f"{TURN}{text}<|im_end|>\n") == [*before, *ids, *after]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_text_comes_back(text: str) -> None:
    tokenizer, _ = _loaded()
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def _loaded() -> tuple[Tokenizer, list[int]]:
    if not _CACHE:
        import tempfile

        with tempfile.TemporaryDirectory() as cache:
            tokenizer = Tokenizer.from_folder(demo.ensure(Path(cache)))
        _CACHE.append((tokenizer, [tokenizer.encode(f" {word}")[0] for word in lexicon.words()]))
    return _CACHE[0]


_CACHE: list[tuple[Tokenizer, list[int]]] = []


def test_the_next_turn_repeats_prompt_and_answer_token_by_token(
    tokenizer: Tokenizer, words: list[int]
) -> None:
    renderer = ChatRenderer(tokenizer)
    first = [{"role": "user", "content": "Tell me, please: why?"}]
    prompt = renderer.render(first, add_generation_prompt=True).tokens
    answer = words[5:30]
    later = [
        *first,
        {"role": "assistant", "content": tokenizer.decode(answer)},
        {"role": "user", "content": "And then?"},
    ]
    sent = renderer.render(later, add_generation_prompt=True).tokens
    end = tokenizer.token_id(vocabulary.TURN_END)
    assert sent[: len(prompt) + len(answer) + 1] == [*prompt, *answer, end]


def test_end_tokens_and_context_are_in_the_configs(folder: Path, tokenizer: Tokenizer) -> None:
    end, end_of_text = (tokenizer.token_id(text) for text in ("<|im_end|>", "<|endoftext|>"))
    assert tokenizer.eos_token_ids == (end, end_of_text)
    assert _config(folder)["eos_token_id"] == end
    assert _config(folder)["max_position_embeddings"] == 32768
    assert _config(folder)["vocab_size"] >= tokenizer.vocab_size


# -------------------------------------------------------------------------------- weights


def test_it_is_a_hybrid_of_a_few_megabytes(folder: Path) -> None:
    kinds = _config(folder)["layer_types"]
    assert kinds == ["linear_attention"] * 3 + ["full_attention"] + kinds[:4]
    assert (folder / "model.safetensors").stat().st_size < 25e6


def test_weights_are_finite_float32(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {np.dtype(np.float32)}
    assert all(np.isfinite(tensor).all() for tensor in weights.values())


def test_no_layer_writes_the_constant_channels(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    writers = [name for name in weights if name.endswith(("out_proj.weight", "o_proj.weight"))]
    writers += [name for name in weights if name.endswith("down_proj.weight")]
    assert len(writers) == 16
    assert not any(weights[name][:2].any() for name in writers)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    loaded = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    model, report = loaded
    assert type(model).__name__ == "Qwen3_5ForCausalLM"
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def _write_text(
    model: Any, prompt: list[int], num_tokens: int, *, num_texts: int, temperature: float
) -> list[list[int]]:
    """Return what the model writes: `num_texts` texts, each up to its end token."""
    import torch

    generator = torch.Generator().manual_seed(0)
    tokens = torch.tensor([prompt] * num_texts)
    texts: list[list[int]] = [[] for _ in range(num_texts)]
    cache, position = None, 0
    with torch.inference_mode():
        for _ in range(num_tokens):
            places = torch.arange(position, position + tokens.shape[1]).expand(num_texts, -1)
            out = model(tokens, cache=cache, use_cache=True, position_ids=places)
            cache, position = out.cache, position + tokens.shape[1]
            logits = out.logits[:, -1]
            if temperature == 0.0:
                chosen = logits.argmax(-1)
            else:
                odds = torch.softmax(logits / temperature, -1)
                chosen = torch.multinomial(odds, 1, generator=generator)[:, 0]
            for text, token in zip(texts, chosen.tolist(), strict=True):
                if not text or text[-1] != 2:
                    text.append(token)
            tokens = chosen[:, None]
    return texts


def _prompt(tokenizer: Tokenizer, words: str) -> list[int]:
    chat = [{"role": "user", "content": words}]
    return ChatRenderer(tokenizer).render(chat, add_generation_prompt=True).tokens


def test_answers_are_words_and_end_after_about_forty(
    model: Any, tokenizer: Tokenizer, words: list[int]
) -> None:
    prompt = _prompt(tokenizer, "Tell me a story about a fox.")
    texts = _write_text(model, prompt, 120, num_texts=40, temperature=1.0)
    written = {token for text in texts for token in text}
    assert written <= {*words, 2}
    assert len(written) > 300
    num_tokens, num_ends = sum(map(len, texts)), sum(text[-1] == 2 for text in texts)
    # Tokens per end: the mean length, also when some texts were cut.
    assert 25 < num_tokens / num_ends < 60
    assert min(map(len, texts)) > 1


def test_greedy_answers_depend_on_the_prompt_and_do_not_loop(
    model: Any, tokenizer: Tokenizer
) -> None:
    prompts = ("Hello!", "Hello?", "Tell me a story about a fox.", "What is the sea?")
    texts = [
        _write_text(model, _prompt(tokenizer, words), 40, num_texts=1, temperature=0.0)[0]
        for words in prompts
    ]
    assert len({tuple(text[:8]) for text in texts}) == len(prompts)
    for text in texts:
        assert len(set(text)) > 0.7 * len(text)


def test_what_stands_far_back_still_matters(model: Any, tokenizer: Tokenizer) -> None:
    """Otherwise a lost state or a wrong row would never show."""
    import torch

    filler = "the river and the wood " * 60
    prompts = [_prompt(tokenizer, f"the {first} {filler}") for first in ("fox", "sea")]
    assert len(prompts[0]) == len(prompts[1]) > 300
    with torch.inference_mode():
        one, other = (
            model(torch.tensor([prompt]), position_ids=torch.arange(len(prompt))[None]).logits[
                0, -1
            ]
            for prompt in prompts
        )
    assert (one - other).abs().max() > 0.05
