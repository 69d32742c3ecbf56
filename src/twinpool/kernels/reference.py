"""Plain torch twins of the stateless ops: linears, norms, experts, router, embedding, rope.

The oracle of the fast kernels, and what serves where a fast one is refused. Knows no pool; the ops
that read rows and slots are in `reference_mixers`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from twinpool.kernels.batch import IntArray
from twinpool.kernels.views import Rope


class ReferenceLinear:
    """`y = x @ weight.T + bias` through `F.linear` in float32.

    Args:
        weight: `[N, K]` float32 or bfloat16; kept as it is, widened on every call.
        bias: `[N]`, or None.
    """

    implementation = "torch"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.numel() * weight.element_size()
        self._weight = weight
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the linear to `x` `[T, K]` float32; returns a new `[T, N]` float32."""
        return F.linear(x, self._weight.float(), self._bias)


class ReferenceExperts:
    """Routed SwiGLU experts, one choice and one expert at a time.

    Args:
        gate_up: `[E, 2F, K]`, gate rows then up rows of each expert.
        down: `[E, K, F]`.
    """

    implementation = "torch"

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        self.num_experts = gate_up.shape[0]
        self.weight_bytes = sum(w.numel() * w.element_size() for w in (gate_up, down))
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Sum of the chosen experts' outputs, added in the order of `ids`.

        Args:
            x: `[T, K]` float32.
            ids: `[T, k]` int32, expert of each choice.
            weights: `[T, k]` float32.

        Returns:
            A new `[T, K]` float32.
        """
        out = torch.zeros_like(x)
        for choice in range(ids.shape[1]):
            for expert in sorted(set(ids[:, choice].tolist())):
                tokens = torch.nonzero(ids[:, choice] == expert).squeeze(1)
                hidden = silu_mul(F.linear(x[tokens], self._gate_up[expert].float()))
                y = F.linear(hidden, self._down[expert].float())
                out[tokens] += y * weights[tokens, choice].unsqueeze(1)
        return out


def embed(table: torch.Tensor, tokens: IntArray) -> torch.Tensor:
    """Rows of the embedding table, as float32.

    Args:
        table: `[N, K]` float32 or bfloat16.
        tokens: `[T]` int32, each below `N`.

    Returns:
        A new `[T, K]` float32.
    """
    return table[torch.from_numpy(tokens).long()].float()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / rms(x) * weight` per row.

    Args:
        x: `[T, K]` float32.
        weight: `[K]` float32, as it multiplies (a zero-centred weight has 1 added by the loader).
        eps: Added to the mean square.

    Returns:
        A new `[T, K]` float32.
    """
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def add_rms_norm(
    residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add `x` to the residual stream, then its RMSNorm.

    Args:
        residual: `[T, K]` float32, written in place.
        x: `[T, K]` float32.
        weight: As in `rms_norm`.
        eps: As in `rms_norm`.

    Returns:
        A new `[T, K]` float32.

    Changes:
        `residual += x`.
    """
    residual += x
    return rms_norm(residual, weight, eps)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of `[T, 2F]`, gate columns first; returns a new `[T, F]`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def add_gated(out: torch.Tensor, x: torch.Tensor, gate: torch.Tensor) -> None:
    """Add `x * sigmoid(gate)` to `out` in place.

    Args:
        out: `[T, K]` float32, written in place.
        x: `[T, K]` float32.
        gate: `[T, 1]` float32, one logit per token.
    """
    out += x * torch.sigmoid(gate)


def route(logits: torch.Tensor, top_k: int, normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the experts of every token: softmax over all of them, then the `top_k` best.

    Args:
        logits: `[T, E]` float32.
        top_k: Experts per token.
        normalise: True to make the chosen weights sum to 1.

    Returns:
        Ids `[T, k]` int32 by falling probability (the lower id first where equal) and weights
        `[T, k]` float32.
    """
    probs = torch.softmax(logits, dim=-1)
    values, ids = torch.sort(probs, dim=-1, descending=True, stable=True)
    values, ids = values[:, :top_k], ids[:, :top_k]
    if normalise:
        values = values / values.sum(-1, keepdim=True)
    return ids.to(torch.int32).contiguous(), values.contiguous()


def rope(positions: IntArray, inv_freq: torch.Tensor, scaling: float = 1.0) -> Rope:
    """Rotary factors of the packed tokens.

    Args:
        positions: `[T]` int32.
        inv_freq: `[rotary_dim / 2]` float32.
        scaling: What cos and sin are multiplied by.

    Returns:
        Cos and sin, `[T, rotary_dim / 2]` float32 each. The angle is rounded to float32 before
        cos and sin are taken, as transformers does.
    """
    angles = torch.from_numpy(positions).float().unsqueeze(1) * inv_freq
    return Rope(angles.cos() * scaling, angles.sin() * scaling)


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Log probabilities of every row of `[T, N]` float32; returns a new tensor."""
    return torch.log_softmax(logits, dim=-1)
