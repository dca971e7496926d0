"""Layers with weights: Linear, Embedding, RMSNorm, LayerNorm."""

from __future__ import annotations

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.module import Module
from wgpu_backend.nn.module import weight as tagged


class Linear(Module):
    """``x @ weight.T + bias``."""

    weight: Tensor = tagged("weight")
    bias: Tensor | None = tagged("bias")

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., k) to (..., m)."""
        y = self.weight.mulmat(x)
        return y if self.bias is None else y.add(self.bias)


class Embedding(Module):
    """Rows of a matrix."""

    weight: Tensor = tagged("weight")

    def __call__(self, ids: Tensor) -> Tensor:
        """Rows for (tokens,) i32 ids: (tokens, cols), f32."""
        return self.weight.rows(ids)


class RMSNorm(Module):
    """Rows scaled to unit mean square."""

    weight: Tensor = tagged("weight")

    def __call__(self, x: Tensor, eps: float) -> Tensor:
        """Normalise (..., cols)."""
        return x.rms_norm(self.weight, eps=eps)


class LayerNorm(Module):
    """Rows shifted and scaled to zero mean and unit variance."""

    weight: Tensor = tagged("weight")
    bias: Tensor | None = tagged("bias")

    def __call__(self, x: Tensor, eps: float) -> Tensor:
        """Normalise (..., cols)."""
        return x.layer_norm(self.weight, self.bias, eps=eps)
