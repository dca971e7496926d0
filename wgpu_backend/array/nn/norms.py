"""Layers that normalise, computed in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wgpu_backend.array.base import wrap
from wgpu_backend.array.conversion import MOST_AXES
from wgpu_backend.array.creation import ones, zeros
from wgpu_backend.array.nn.layer_helpers import as_floats, as_optional, as_optional_singles
from wgpu_backend.array.nn.module import Module
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.reduce import group_norm as groups
from wgpu_backend.ops.reduce import norm
from wgpu_backend.ops.shape.copying import contiguous
from wgpu_backend.ops.shape.shapes import reshape_node
from wgpu_backend.ops.shape.views import permute

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


def _as_rows(x: Node) -> Node:
    """Return contiguous rows, with at most four axes."""
    spec = x.spec
    if spec.shape and spec.shape[-1] > 1 and spec.strides[-1] != 1:
        x = contiguous(x)
    if len(spec.shape) <= MOST_AXES:
        return x
    return reshape_node(x, (spec.size // max(spec.shape[-1], 1), spec.shape[-1]))


class RMSNorm(Module):
    """Rows scaled to unit mean square, then by a weight (Zhang & Sennrich 2019, eq. 4).

    Parameters
    ----------
    dims : int
        Values of a row.
    eps : float
        Added to the mean square.
    affine : bool
        Multiply by a weight.
    """

    def __init__(self, dims: int, eps: float = 1e-5, affine: bool = True) -> None:
        self.weight = ones((dims,)) if affine else None
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        """Map (..., dims) to the same, float32."""
        node = as_floats("RMSNorm", x)
        weight = _vector("RMSNorm", self.weight)
        return wrap(reshape_node(norm.rms_norm(_as_rows(node), weight, eps=self.eps), x.shape))


class LayerNorm(Module):
    """Rows shifted and scaled to zero mean and unit variance (Ba et al. 2016, eq. 3).

    Parameters
    ----------
    dims : int
        Values of a row.
    eps : float
        Added to the variance.
    affine : bool
        Multiply by a weight.
    bias : bool
        Add a bias too.
    """

    def __init__(
        self, dims: int, eps: float = 1e-5, affine: bool = True, bias: bool = True
    ) -> None:
        self.weight = ones((dims,)) if affine else None
        self.bias = zeros((dims,)) if affine and bias else None
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        """Map (..., dims) to the same, float32."""
        node, weight, bias = (
            as_floats("LayerNorm", x),
            _vector("LayerNorm", self.weight),
            _vector("LayerNorm", self.bias),
        )
        return wrap(
            reshape_node(norm.layer_norm(_as_rows(node), weight, bias, eps=self.eps), x.shape)
        )


class GroupNorm(Module):
    """Groups of channels at zero mean and unit variance over all positions (Wu & He 2018, eq. 2).

    Parameters
    ----------
    num_groups, dims : int
        Channels are a multiple of groups.
    eps : float
        Added to the variance.
    affine : bool
        Apply a weight and a bias.
    pytorch_compatible : bool
        Neighbouring channels are a group. Otherwise, as in MLX by default, a group is every
        `num_groups`-th channel.
    """

    def __init__(
        self,
        num_groups: int,
        dims: int,
        eps: float = 1e-5,
        affine: bool = True,
        pytorch_compatible: bool = False,
    ) -> None:
        self.weight = ones((dims,)) if affine else None
        self.bias = zeros((dims,)) if affine else None
        self.num_groups, self.eps = num_groups, eps
        self.pytorch_compatible = pytorch_compatible

    def __call__(self, x: Array) -> Array:
        """Map (n, ..., dims) to the same, float32."""
        node = as_floats("GroupNorm", x)
        weight, bias = as_optional(self.weight), as_optional(self.bias)
        if self.pytorch_compatible:
            return wrap(groups.group_norm(node, self.num_groups, weight, bias, self.eps))
        # The op takes neighbouring channels as a group: channels are reordered and put back.
        plain = _regroup(node, self.num_groups)
        normed = groups.group_norm(plain, self.num_groups, None, None, self.eps)
        y = wrap(_regroup(normed, x.shape[-1] // self.num_groups))
        return y if self.weight is None else y * self.weight + self.bias


def _regroup(x: Node, count: int) -> Node:
    """Transpose channels from (dims / count, count) to (count, dims / count)."""
    *leading, dims = x.spec.shape
    pairs = reshape_node(x, (x.spec.size // max(dims, 1), dims // count, count))
    return reshape_node(contiguous(permute(pairs, 0, 2, 1)), (*leading, dims))


class InstanceNorm(Module):
    """Each channel at zero mean and unit variance over all positions (Ulyanov et al. 2016).

    Parameters
    ----------
    dims : int
        Channels.
    eps : float
        Added to the variance.
    affine : bool
        Apply a weight and a bias.
    """

    def __init__(self, dims: int, eps: float = 1e-5, affine: bool = False) -> None:
        self.weight = ones((dims,)) if affine else None
        self.bias = zeros((dims,)) if affine else None
        self.dims, self.eps = dims, eps

    def __call__(self, x: Array) -> Array:
        """Map (n, ..., dims) to the same, float32."""
        node = as_floats("InstanceNorm", x)
        weight, bias = as_optional(self.weight), as_optional(self.bias)
        return wrap(groups.group_norm(node, self.dims, weight, bias, self.eps))


class BatchNorm(Module):
    """Channels shifted and scaled by statistics of training (Ioffe & Szegedy 2015, alg. 2).

    Parameters
    ----------
    num_features : int
        Channels.
    eps : float
        Added to the variance.
    affine : bool
        Apply a weight and a bias.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        self.weight = ones((num_features,)) if affine else None
        self.bias = zeros((num_features,)) if affine else None
        self.running_mean = zeros((num_features,))
        self.running_var = ones((num_features,))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        """Map (..., num_features) to the same, float32."""
        from wgpu_backend.array.elementwise import sqrt

        # As trained: means and variances of the batch are for training.
        y = (x - self.running_mean) / sqrt(self.running_var + self.eps)
        return y if self.weight is None else y * self.weight + self.bias


def _vector(name: str, x: Array | None) -> Node | None:
    """Return a weight in the type that norms take."""
    return as_optional_singles(name, x)
