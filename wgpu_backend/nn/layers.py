"""Layers with weights: Linear, Embedding, RMSNorm, LayerNorm."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.graph.spec import Spec
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

    def precise(self, x: Tensor) -> Tensor:
        """Map (..., k) to (..., m) as precisely as the device can: for logits."""
        y = self.weight.mulmat_full_prec(x)
        return y if self.bias is None else y.add(self.bias)


def fused_linear(x: Tensor, *layers: Linear) -> list[Tensor]:
    """Several layers of one input, as few products as their weights' places allow.

    Parameters
    ----------
    x : (..., k), f32
    layers : Linear
        Weights that lie side by side on the device, see ``Backend.load``, take one product.

    Returns
    -------
    list of (..., m), f32
        One for each layer; parts of a wider result where products were joined.
    """
    results: list[Tensor] = []
    for run in _runs(layers):
        weight = _joined([layer.weight for layer in run])
        bias = None if run[0].bias is None else _joined([b.bias for b in run if b.bias is not None])
        y, start = weight.linear(x, bias), 0
        for layer in run:
            stop = start + layer.weight.shape[0]
            results.append(y.slice(-1, start, stop) if len(run) > 1 else y)
            start = stop
    return results


def _runs(layers: Sequence[Linear]) -> list[list[Linear]]:
    """Layers in groups whose weights, and biases, follow each other in one storage."""
    runs = [[layers[0]]]
    for layer in layers[1:]:
        last = runs[-1][-1]
        if _follows(last.weight, layer.weight) and _follows(last.bias, layer.bias):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def _follows(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.storage is b.storage and a.spec.offset + a.spec.size == b.spec.offset


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One view of neighbours."""
    first, spec = parts[0], parts[0].spec
    if len(parts) == 1:
        return first
    rows = sum(p.shape[0] for p in parts)
    return first.beside(Spec((rows, *spec.shape[1:]), spec.dtype, spec.strides, spec.offset))


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
