"""Functions of one array that are its methods, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wgpu_backend.array import elementwise, moving, ordering, reductions, scans
from wgpu_backend.array.core import Core
from wgpu_backend.array.updating import Places

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array


class Methods(Core):
    """Methods that are functions of the package by the same name."""

    __slots__ = ()

    sum, prod, mean = reductions.sum, reductions.prod, reductions.mean
    max, min, var, std = reductions.max, reductions.min, reductions.var, reductions.std
    any, all, logsumexp = reductions.any, reductions.all, reductions.logsumexp
    argmax, argmin = reductions.argmax, reductions.argmin
    cumsum, cumprod, logcumsumexp = scans.cumsum, scans.cumprod, scans.logcumsumexp
    cummax, cummin = scans.cummax, scans.cummin
    sort, argsort, topk = ordering.sort, ordering.argsort, ordering.topk
    diag, diagonal, view = moving.diag, moving.diagonal, moving.view
    abs, round, conj = elementwise.abs, elementwise.round, elementwise.conj
    exp, log, log2, log10 = elementwise.exp, elementwise.log, elementwise.log2, elementwise.log10
    log1p, sqrt, rsqrt = elementwise.log1p, elementwise.sqrt, elementwise.rsqrt
    square, reciprocal = elementwise.square, elementwise.reciprocal
    sin, cos, tanh = elementwise.sin, elementwise.cos, elementwise.tanh

    @property
    def real(self: Any) -> Array:
        """View of real parts; see `wgpu_backend.array.real`."""
        return elementwise.real(self)

    @property
    def imag(self: Any) -> Array:
        """View of imaginary parts; see `wgpu_backend.array.imag`."""
        return elementwise.imag(self)

    @property
    def at(self: Any) -> Places:
        """``x.at[index].add(values)``: an array in which values are folded into some places."""
        return Places(self)
