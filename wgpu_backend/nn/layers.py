"""Layers with weights: Linear, Embedding, RMSNorm, LayerNorm."""

from __future__ import annotations

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.module import Module
from wgpu_backend.nn.module import weight as tagged


class Linear(Module):
    """``x @ weight.T + bias``; what is added goes into the product's own kernel."""

    weight: Tensor = tagged("weight")
    bias: Tensor | None = tagged("bias")

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (..., k) to (..., m), and add `residual` of that shape."""
        if self.bias is None:
            return self.weight.linear(x, residual)
        y = self.weight.linear(x, self.bias)
        return y if residual is None else y.add(residual)


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
