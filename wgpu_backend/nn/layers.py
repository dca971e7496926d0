"""Layers with one weight each: linear layers, embeddings and norms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.low_rank import LowRank
from wgpu_backend.nn.module import Module, Shape, old_names
from wgpu_backend.nn.module import weight as tagged


@old_names(changed="add_adapters", changes="adapters")
class Linear(Module):
    """``x @ weight.T + bias``; bias and residual are added in the product's own kernel.

    Attributes
    ----------
    adapters : tuple of LowRank
        LoRA adapters, added to the product.
    """

    adapters: tuple[LowRank, ...] = ()
    weight: Tensor = tagged("weight", "shape")
    bias: Tensor | None = tagged("bias", "bias_shape")
    scale: Tensor | None = tagged("scale", 1)

    @property
    def bias_shape(self) -> Shape | None:
        """Return the shape of the bias: the weight's shape without its last axis."""
        return None if self.shape is None else self.shape[:-1]

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (..., k) to (..., m), and add `residual` of that shape."""
        return self.add_adapters(self._product(x, residual), x)

    def add_adapters(self, y: Tensor, x: Tensor) -> Tensor:
        """Add the adapters' terms for `x` to the product `y` of the weight with `x`."""
        for adapter in self.adapters:
            y = adapter.linear(y, x)
        return y

    def _product(self, x: Tensor, residual: Tensor | None) -> Tensor:
        if self.scale is not None:
            return self._apply_scale(self.weight.linear(x, None), self.scale, residual)
        if self.bias is None:
            return self.weight.linear(x, residual)
        # The product's kernel adds one row or tensor, and the bias takes that place.
        y = self.weight.linear(x, self.bias)
        return y if residual is None else y.add(residual)

    def _apply_scale(self, y: Tensor, scale: Tensor, residual: Tensor | None) -> Tensor:
        """Multiply a product by the file's scale, which some formats leave out of the weight."""
        y = y.mul(scale)
        y = y if self.bias is None else y.add(self.bias)
        return y if residual is None else y.add(residual)

    def precise(self, x: Tensor) -> Tensor:
        """Map (..., k) to (..., m) at the device's highest precision, for logits."""
        # The largest logit decides the token, and the best two may differ by less than a rounding.
        y = self.weight.mulmat_full_prec(x)
        if self.scale is not None:
            y = self._apply_scale(y, self.scale, None)
        elif self.bias is not None:
            y = y.add(self.bias)
        return self.add_adapters(y, x)


def fused_linear(x: Tensor, *layers: Linear) -> list[Tensor]:
    """Apply several layers to one input, in as few products as their storage allows.

    Parameters
    ----------
    x : (..., k), f32
    layers : Linear
        Layers whose weights are adjacent on the device, see ``Backend.load``, share one product.

    Returns
    -------
    list of (..., m), f32
        One for each layer; slices of a wider result where products were joined.
    """
    results: list[Tensor] = []
    for run in _group_adjacent(layers):
        if len(run) == 1:
            results.append(run[0](x))
            continue
        weight = _join([layer.weight for layer in run])
        bias = None if run[0].bias is None else _join([b.bias for b in run if b.bias is not None])
        y, start = weight.linear(x, bias), 0
        for layer in run:
            stop = start + layer.weight.shape[0]
            # An adapter belongs to one of the layers, so that products of adapters are not joined.
            results.append(layer.add_adapters(y.slice(-1, start, stop), x))
            start = stop
    return results


def _group_adjacent(layers: Sequence[Linear]) -> list[list[Linear]]:
    """Group layers whose weights and biases are adjacent in one storage."""
    runs = [[layers[0]]]
    for layer in layers[1:]:
        last = runs[-1][-1]
        # A joined product has no place for a factor of some of its rows.
        plain = last.scale is None and layer.scale is None
        if plain and _follows(last.weight, layer.weight) and _follows(last.bias, layer.bias):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def _follows(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    # `Backend.load` stores groups of weights next to each other, see `Model.fused_weights`.
    return a.storage is b.storage and a.spec.offset + a.spec.size == b.spec.offset


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Return one view of adjacent tensors."""
    first, spec = parts[0], parts[0].spec
    if len(parts) == 1:
        return first
    rows = sum(p.shape[0] for p in parts)
    return first.beside(Spec((rows, *spec.shape[1:]), spec.dtype, spec.strides, spec.offset))


def beside(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate columns of (tokens, …); a view if they are adjacent parts of one tensor."""
    first, stop = parts[0], parts[0].spec.offset
    apart = False
    for part in parts:
        spec = part.spec
        own = part.storage is first.storage and spec.strides == first.spec.strides
        apart = apart or not own or spec.offset != stop
        stop += spec.shape[1]
    if not apart:
        return first.as_strided((first.shape[0], stop - first.spec.offset), first.spec.strides)
    for part in parts[1:]:
        first = first.concat(part, axis=1)
    return first


def below(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Concatenate rows of weights, for products with `x`; a view if they are adjacent."""
    if all(_follows(a, b) for a, b in pairwise(weights)):
        return _join(weights)
    # Concatenating to an empty f32 matrix dequantises the weights, which may have different types.
    rows = x.context.from_numpy(np.empty((0, *weights[0].shape[1:]), np.float32))
    for weight in weights:
        rows = rows.concat(weight, axis=0)
    return rows


@old_names(scaled="apply_scales")
class ExpertLinear(Linear):
    """A `Linear` for each expert: weight (experts, m, k), bias (experts, m), scale (experts,)."""

    scale: Tensor | None = tagged("scale", "count")

    @property
    def count(self) -> int | None:
        """Return the number of experts."""
        return None if self.shape is None else self.shape[0]

    def by(self, ids: Tensor, x: Tensor) -> Tensor:
        """Multiply each token's row by the experts in `ids`.

        x is (tokens, 1 or used, k), ids are (tokens, used), the result is (tokens, used, m).
        """
        # Scales belong to the matrices, so they come before the bias.
        y = self.apply_scales(self.weight.mulmat_id(x, ids), ids)
        y = y if self.bias is None else y.add_id(self.bias, ids)
        for adapter in self.adapters:
            y = adapter.by(y, ids, x)
        return y

    def apply_scales(self, y: Tensor, ids: Tensor) -> Tensor:
        """Multiply each expert's results, (tokens, used, m), by its scale, if there are any."""
        if self.scale is None:
            return y
        return y.mul(self.scale.reshape(-1, 1).rows(ids.reshape(-1)).reshape(*ids.shape, 1))


class HeadLinear(Linear):
    """A `Linear` for each head: weight (heads, m, k)."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (heads, tokens, k) to (heads, tokens, m), and add `residual` of that shape."""
        y = self.weight.mulmat(x)
        if self.scale is not None:
            y = y.mul(self.scale)
        for adapter in self.adapters:
            y = adapter.by_head(y, x)
        return y if residual is None else y.add(residual)


class Filter(Module):
    """The taps of a convolution, one row per channel, and its bias; without adapters."""

    weight: Tensor = tagged("weight", "shape")
    bias: Tensor | None = tagged("bias", "channels")

    @property
    def channels(self) -> int | None:
        """Return the number of channels."""
        return None if self.shape is None else self.shape[0]


@old_names(changes="adapters")
class Embedding(Module):
    """A matrix whose rows are looked up.

    Attributes
    ----------
    adapters : tuple of LowRank
        LoRA adapters, added to the rows.
    """

    adapters: tuple[LowRank, ...] = ()
    weight: Tensor = tagged("weight", "shape")

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the rows of (tokens,) i32 ids: (tokens, cols), f32."""
        y = self.weight.rows(ids)
        for adapter in self.adapters:
            y = adapter.rows(y, ids)
        return y


class Norm(Module, ABC):
    """A normalisation of rows; the kind decides which key of the file has epsilon.

    Parameters
    ----------
    eps : float
        Added to the mean square or variance, unless a call passes another value.
    """

    eps_key: ClassVar[str]

    def __init__(self, eps: float = 1e-5) -> None:
        self.eps = eps

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Make a norm with a file's epsilon.

        Raises
        ------
        ModelError
            Epsilon is missing, or less than 0.
        """
        eps = config.float(cls.eps_key)
        if eps < 0:
            raise ModelError(f"{config.source}: {cls.eps_key} is {eps}, needs at least 0")
        return cls(eps)

    @abstractmethod
    def __call__(self, x: Tensor, eps: float | None = None) -> Tensor:
        """Normalise rows of (..., cols)."""


class RMSNorm(Norm):
    """A norm that scales rows to unit mean square (Zhang & Sennrich 2019)."""

    eps_key = "attention.layer_norm_rms_epsilon"
    weight: Tensor = tagged("weight", "shape")

    def __call__(self, x: Tensor, eps: float | None = None) -> Tensor:
        """Normalise rows of (..., cols)."""
        return x.rms_norm(self.weight, eps=self.eps if eps is None else eps)


class LayerNorm(Norm):
    """A norm that gives rows zero mean and unit variance (Ba et al. 2016)."""

    eps_key = "attention.layer_norm_epsilon"
    weight: Tensor = tagged("weight", "shape")
    bias: Tensor | None = tagged("bias", "shape")

    def __call__(self, x: Tensor, eps: float | None = None) -> Tensor:
        """Normalise rows of (..., cols)."""
        return x.layer_norm(self.weight, self.bias, eps=self.eps if eps is None else eps)


class PlainLayerNorm(Norm):
    """A `LayerNorm` without weights."""

    eps_key = "attention.layer_norm_epsilon"

    def __call__(self, x: Tensor, eps: float | None = None) -> Tensor:
        """Normalise rows of (..., cols)."""
        return x.layer_norm(None, eps=self.eps if eps is None else eps)


class HeadLayerNorm(LayerNorm):
    """A `LayerNorm` of each head, with its own weights: (heads, cols)."""

    def __call__(self, x: Tensor, eps: float | None = None) -> Tensor:
        """Normalise rows of (tokens, heads, cols)."""
        # The op's own weights are one row for all heads, so these are applied after it.
        y = x.layer_norm(None, eps=self.eps if eps is None else eps).mul(self.weight)
        return y if self.bias is None else y.add(self.bias)
