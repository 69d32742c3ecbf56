"""The decoder: embedding, blocks, norm and head over a ragged batch.

Knows no family, no file and no request: which positions give logits is the caller's choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from twinpool.kernels.batch import IntArray, RaggedBatch
from twinpool.kernels.registry import Linear, OpTable
from twinpool.models.blocks import Block, LayerView
from twinpool.models.config import DecoderConfig
from twinpool.spec.model import ModelSpec


class Decoder:
    """A loaded model.

    Args:
        config: Its shapes and numbers; `config.spec.dtype` is the dtype that the weights have here,
            and so that of rows and conv states.
        ops: The kernels.
        embedding: `[vocab, hidden]`.
        blocks: One per layer.
        final_norm: float32 `[hidden]`.
        head: Packed output head.
        weight_bytes: Memory of embedding, linears and head, as packed.
    """

    def __init__(
        self,
        config: DecoderConfig,
        ops: OpTable,
        *,
        embedding: torch.Tensor,
        blocks: Sequence[Block],
        final_norm: torch.Tensor,
        head: Linear,
        weight_bytes: int,
    ) -> None:
        self.config = config
        self.weight_bytes = weight_bytes
        self._ops = ops
        self._embedding = embedding
        self._blocks = tuple(blocks)
        self._final_norm = final_norm
        self._head = head
        width = config.rotary.width
        exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
        self._inv_freq = 1.0 / config.rotary.theta**exponents

    @property
    def spec(self) -> ModelSpec:
        """Layers, sizes and dtypes; geometry is worked out from it."""
        return self.config.spec

    @property
    def ops(self) -> OpTable:
        """The kernels that serve it."""
        return self._ops

    def forward(
        self,
        token_ids: IntArray,
        batch: RaggedBatch,
        views: Sequence[LayerView],
        logits_rows: IntArray,
    ) -> torch.Tensor:
        """Run the packed tokens through the model.

        Args:
            token_ids: int32 `[T]`, each in `[0, vocab)`.
            batch: Which tokens, rows and slots; rows and slots are read and written in place.
            views: One per layer: where its rows or states lie.
            logits_rows: int32 `[n]`, packed tokens whose logits are wanted.

        Returns:
            float32 `[n, vocab]`, the caller's own. The bits of one row depend on its lane alone:
            on no batch mate, no split into chunks and no physical row or slot.
        """
        return self.logits(self.hidden_states(token_ids, batch, views, logits_rows))

    @torch.inference_mode()
    def hidden_states(
        self,
        token_ids: IntArray,
        batch: RaggedBatch,
        views: Sequence[LayerView],
        wanted: IntArray,
    ) -> torch.Tensor:
        """Run the blocks and the final norm; arguments are those of `forward`.

        Returns:
            float32 `[n, hidden]`, what the head reads, for the wanted packed tokens.
        """
        ops, eps = self._ops, self.config.norm_eps
        rope = ops.rope(batch.positions, self._inv_freq, 1.0)
        x = ops.embed(self._embedding, token_ids)
        last = len(self._blocks) - 1
        h = ops.rms_norm(x, self._blocks[0].input_norm, eps)
        for index, (block, view) in enumerate(zip(self._blocks, views, strict=True)):
            mixed = block.mixer(h, rope, view, batch)
            if index == last:
                # Nothing reads the other tokens any more: rows and states are written.
                chosen = torch.from_numpy(wanted)
                x, mixed = x.index_select(0, chosen), mixed.index_select(0, chosen)
            h = ops.add_rms_norm(x, mixed, block.post_norm, eps)
            following = self._final_norm if index == last else self._blocks[index + 1].input_norm
            h = ops.add_rms_norm(x, block.mlp(h), following, eps)
        return h

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the head to `[n, hidden]` float32 from `hidden_states`; returns `[n, vocab]`."""
        return self._head(hidden)
