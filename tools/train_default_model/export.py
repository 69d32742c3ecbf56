"""Writes the trained model as a folder in Hugging Face layout, weights in bfloat16.

Knows no data. The model card is written by hand and lies in the folder already.

    python -m tools.train_default_model.export WORK FOLDER
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from tools.train_default_model import tokenizer as vocabulary
from tools.train_default_model.train import Training

MAX_WEIGHT_BYTES = 24_000_000


def main() -> None:
    """Write config, weights, tokenizer and template into FOLDER."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    model = Training(options.work).model
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()
    }
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    size = (folder / "model.safetensors").stat().st_size
    assert size <= MAX_WEIGHT_BYTES, f"{size:,} bytes of weights"
    # Stored narrow, computed wide: in float32 a prefix hit gives the same answer bit for bit.
    config = json.loads(model.config.to_json_string(use_diff=False))
    _write_json(folder / "config.json", _needed(config))
    _write_json(
        folder / "generation_config.json",
        {"do_sample": False, "eos_token_id": config["eos_token_id"]},
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": vocabulary.TURN_END,
            "pad_token": vocabulary.END_OF_TEXT,
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
        },
    )
    shutil.copyfile(options.work / "tokenizer.json", folder / "tokenizer.json")
    shutil.copyfile(vocabulary.TEMPLATE, folder / "chat_template.jinja")
    print(f"{folder}: {size:,} bytes of weights")


def _needed(config: dict[str, object]) -> dict[str, object]:
    """Return the fields of the config that say something of this model."""
    left_out = {"_name_or_path", "transformers_version", "id2label", "label2id", "problem_type",
                "chunk_size_feed_forward", "is_encoder_decoder", "output_attentions",
                "output_hidden_states", "return_dict"}  # fmt: skip
    kept = {
        name: value for name, value in config.items() if name not in left_out and value is not None
    }
    return {**kept, "architectures": ["Qwen3_5ForCausalLM"], "dtype": "float32"}


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
