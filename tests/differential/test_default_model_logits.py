"""The default model's folder: transformers loads it as it is, and both write the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from model_runs import Bench
from tiny_models import reference_decode, reference_logits
from twinpool.engine import default_model
from twinpool.engine.chat import ChatRenderer
from twinpool.engine.tokenizer import Tokenizer
from twinpool.models.load import load_model
from twinpool.units import DType

# Logits are about 10 wide, those of the random models about 1.
TOLERANCE = 1e-3
CHAT = [
    {"role": "user", "content": "What is a generator?"},
    {"role": "assistant", "content": "A function which returns a generator iterator."},
    {"role": "user", "content": "What does os.path.join do?"},
]


@pytest.fixture(scope="module")
def theirs() -> Any:
    model, report = AutoModelForCausalLM.from_pretrained(
        default_model.folder(), dtype=torch.float32, output_loading_info=True
    )
    assert type(model).__name__ == "Qwen3_5ForCausalLM"
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


@pytest.fixture(scope="module")
def prompt() -> np.ndarray:
    tokenizer = Tokenizer.from_folder(default_model.folder())
    tokens = ChatRenderer(tokenizer).render(CHAT, add_generation_prompt=True).tokens
    return np.array(tokens, np.int32)


def test_transformers_writes_the_same_prompt(prompt: np.ndarray) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_model.folder())
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ids == prompt.tolist()


def test_logits_equal_transformers(theirs: Any, prompt: np.ndarray) -> None:
    ours = load_model(default_model.folder())
    expected = reference_logits(theirs, prompt)
    assert expected.std() > 1.0, "a model that knows nothing of the text would hide mistakes"
    assert (Bench(ours).alone(prompt) - expected).abs().max() <= TOLERANCE
    decode = Bench(ours).alone(prompt, 20, *[1] * (len(prompt) - 20))
    assert (decode - reference_decode(theirs, prompt, 20)).abs().max() <= TOLERANCE


def test_the_served_dtype_is_float32_unless_bfloat16_is_asked_for() -> None:
    assert load_model(default_model.folder()).spec.dtype is DType.FLOAT32
    folder = default_model.folder()
    assert load_model(folder, dtype=DType.BFLOAT16).spec.dtype is DType.BFLOAT16
