"""Muon for the matrices of the layers, Adam for the rest.

Knows no model. Muon moves a matrix along its momentum with all singular values set to about one,
which on a small budget of tokens gets further than Adam.

Source: K. Jordan, "Muon: an optimizer for hidden layers in neural networks" (2024); the
coefficients of the iteration are from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_MOMENTUM = 0.95
_BETAS = (0.9, 0.95)
_EPSILON = 1e-8
_MIN_ROWS = 32


class Optimizer:
    """Both optimizers, with one state that can be saved as plain tensors.

    Args:
        parameters: Names and parameters; updated in place.
        matrix_rate: Learning rate of the matrices of the layers.
        embedding_rate: Of the embedding.
        other_rate: Of everything else.
        decay: Weight decay of the matrices, as a fraction of the rate.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        matrix_rate: float = 0.02,
        embedding_rate: float = 0.01,
        other_rate: float = 0.003,
        decay: float = 0.02,
    ) -> None:
        self._parameters = dict(parameters)
        self._rates = {"matrix": matrix_rate, "embedding": embedding_rate, "other": other_rate}
        self._decay = decay
        self.step_number = 0
        self.state: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            self.state[f"{name}.first"] = torch.zeros_like(parameter)
            if self._group(name) != "matrix":
                self.state[f"{name}.second"] = torch.zeros_like(parameter)

    def _group(self, name: str) -> str:
        shape = self._parameters[name].shape
        if "embed_tokens" in name:
            return "embedding"
        is_matrix = ".layers." in name and len(shape) == 2 and min(shape) >= _MIN_ROWS
        return "matrix" if is_matrix else "other"

    def step(self, factor: float, workers: Executor) -> None:
        """Move every parameter, and clear its gradient.

        Args:
            factor: What the learning rates are multiplied by.
            workers: What the parameters are shared out to.
        """
        self.step_number += 1
        list(workers.map(lambda name: self._move(name, factor), self._parameters))

    @torch.no_grad()
    def _move(self, name: str, factor: float) -> None:
        parameter = self._parameters[name]
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        group = self._group(name)
        rate = self._rates[group] * factor
        if group == "matrix":
            self._muon(name, parameter, gradient, rate)
        else:
            self._adam(name, parameter, gradient, rate)

    def _muon(self, name: str, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        first = self.state[f"{name}.first"]
        first.lerp_(gradient, 1 - _MOMENTUM)
        direction = _orthogonal(gradient.lerp(first, _MOMENTUM))
        rows, columns = parameter.shape
        parameter.mul_(1 - rate * self._decay)
        parameter.add_(direction, alpha=-rate * max(1.0, rows / columns) ** 0.5)

    def _adam(self, name: str, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        first, second = self.state[f"{name}.first"], self.state[f"{name}.second"]
        first.lerp_(gradient, 1 - _BETAS[0])
        second.lerp_(gradient.square(), 1 - _BETAS[1])
        scale = (1 - _BETAS[1] ** self.step_number) ** 0.5 / (1 - _BETAS[0] ** self.step_number)
        parameter.addcdiv_(first, second.sqrt().add_(_EPSILON), value=-rate * scale)


def _orthogonal(matrix: Tensor, iterations: int = 5) -> Tensor:
    """Return a matrix with the same singular vectors and singular values near one."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x
