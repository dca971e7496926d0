"""Layers of vision transformers (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words").

Weights have the names of llama.cpp's mmproj files. Attention needs no cache, since all patches are
encoded at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.layers import LayerNorm, Linear, Norm, RMSNorm
from wgpu_backend.nn.mlp import activated, gated
from wgpu_backend.nn.module import Module, weight

# Applies RoPE to queries or keys: (patches, heads, cols).
Rotate = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """The sizes and options of a tower's layers.

    Parameters
    ----------
    width, heads, inner, count : int
        Columns of a state, heads, columns between the matrices of the feed-forward network, layers.
    eps : float
        Epsilon of norms.
    activation : str
        Name in `nn.mlp.ACTIVATIONS`.
    norm : type of Norm
        `LayerNorm` or `RMSNorm`.
    """

    width: int
    heads: int
    inner: int
    count: int
    eps: float
    activation: str
    norm: type[Norm] = LayerNorm

    @classmethod
    def from_config(
        cls,
        config: Config,
        section: str = "vision",
        *,
        activation: str | None = None,
        norm: type[Norm] = LayerNorm,
        eps: float | None = None,
        inner: int | None = None,
    ) -> LayerSizes:
        """Read the sizes of a tower.

        Parameters
        ----------
        activation : str or None
            None for the file's: ``feed_forward_activation`` of a section, ``clip.use_gelu`` (tanh
            GELU), ``clip.use_silu``, or else quick GELU.
        eps : float or None
            None for the file's.
        inner : int or None
            Columns between the matrices of the feed-forward network; None for the file's.

        Raises
        ------
        ModelError
            A key is missing, or the width is not a multiple of the heads.
        """
        width = config.uint(f"{section}.embedding_length", at_least=1)
        heads = config.uint(f"{section}.attention.head_count", at_least=1)
        if width % heads:
            raise ModelError(
                f"{config.source}: {section}.embedding_length is {width}, needs a multiple of "
                f"{heads} heads"
            )
        return cls(
            width,
            heads,
            inner or config.uint(f"{section}.feed_forward_length", at_least=1),
            config.uint(f"{section}.block_count", at_least=1),
            config.float(f"{section}.attention.layer_norm_epsilon") if eps is None else eps,
            activation or _activation(config, section),
            norm,
        )

    @property
    def head(self) -> int:
        """Return the columns of a head."""
        return self.width // self.heads

    def make_norm(self) -> Norm:
        """Make a norm of the tower's kind."""
        return self.norm(self.eps)


def count_rows(backend: Backend, name: str) -> int | None:
    """Return the number of rows of a file's matrix; None if the file does not have it."""
    info = backend.file.tensors.get(name)
    return None if info is None else info.shape[0]


def _activation(config: Config, section: str) -> str:
    own = f"{section}.feed_forward_activation"
    if own in config:
        return config.string(own)
    for key, name in (("use_gelu", "gelu"), ("use_silu", "silu")):
        if key in config and config.bool(key):
            return name
    return "gelu_quick"


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, runs: Sequence[int] = ()
) -> Tensor:
    """Attend without a mask: (patches, heads, cols) each, to (patches, heads · cols).

    Parameters
    ----------
    scale : float or None
        Factor of scores; None for ``1 / sqrt(cols)``.
    runs : sequence of int
        Lengths of the runs of patches that attend to each other; empty for one run of all patches.
        Consecutive runs of the same length are computed together.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    parts: list[Tensor] = []
    # A batch of equal runs is one dispatch; one run after another would leave a GPU idle.
    for start, count, length in _group(runs or [q.shape[0]]):
        end = start + count * length
        shaped = [x.slice(0, start, end).reshape(count, length, *x.shape[1:]) for x in (q, k, v)]
        q_part, k_part, v_part = shaped
        y = q_part.scaled_dot_product_attention(k_part, v_part, scale=factor)
        parts.append(y.contiguous().reshape(count * length, -1))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.concat(part, axis=0)
    return whole


def attend_to(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend to other rows: (patches, heads, cols), and (rows, heads, cols) of keys and values.

    Returns
    -------
    (patches, heads · cols)
    """
    queries, keys, values = (x.reshape(1, *x.shape) for x in (q, k, v))
    y = queries.scaled_dot_product_attention(keys, values, scale=q.shape[-1] ** -0.5)
    return y.contiguous().reshape(q.shape[0], -1)


def _group(runs: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return start, count and length of each group of consecutive runs with the same length."""
    groups: list[tuple[int, int, int]] = []
    at = 0
    for length in runs:
        start, count, own = groups[-1] if groups else (0, 0, -1)
        if own == length:
            groups[-1] = (start, count + 1, length)
        else:
            groups.append((at, 1, length))
        at += length
    return groups


class Attention(Module):
    """Attention of patches, with one matrix for queries, keys and values or three."""

    qkv: Linear | None = weight("attn_qkv", "three_widths", "width")
    q: Linear | None = weight("attn_q", "width", "width")
    k: Linear | None = weight("attn_k", "width", "width")
    v: Linear | None = weight("attn_v", "width", "width")
    out: Linear = weight("attn_out", "width", "width")
    q_norm: Norm | None = None
    k_norm: Norm | None = None

    def __init__(self, sizes: LayerSizes, *, norm: Norm | None = None) -> None:
        self.width, self.three_widths, self.sizes = sizes.width, 3 * sizes.width, sizes
        if norm is not None:
            self.q_norm = weight("attn_q_norm", kind=norm, needed=True)
            self.k_norm = weight("attn_k_norm", kind=type(norm)(norm.eps), needed=True)

    def __call__(self, x: Tensor, rotate: Rotate | None = None, runs: Sequence[int] = ()) -> Tensor:
        """Map (patches, width) to the same shape, without the residual; see `attend`."""
        q, k, v = self.project(x)
        if rotate is not None:
            q, k = rotate(q), rotate(k)
        return self.out(attend(q, k, v, runs=runs))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values: (patches, heads, cols) each."""
        if self.qkv is not None:
            parts = self.qkv(x)
            q, k, v = (parts.slice(-1, i * self.width, (i + 1) * self.width) for i in range(3))
        elif self.q is not None and self.k is not None and self.v is not None:
            q, k, v = self.q(x), self.k(x), self.v(x)
        else:
            raise ModelError(f"{self.full_name}: attn_qkv is missing, or attn_q, attn_k and attn_v")
        q = q if self.q_norm is None else self.q_norm(q.contiguous())
        k = k if self.k_norm is None else self.k_norm(k.contiguous())
        shape = (x.shape[0], self.sizes.heads, self.sizes.head)
        return tuple(part.contiguous().reshape(*shape) for part in (q, k, v))  # pyright: ignore[reportReturnType]


class FeedForward(Module):
    """Two matrices with an activation, or three with a gate.

    Attributes
    ----------
    swapped : bool
        Whether ``ffn_down`` is the first matrix, as in files of llama.cpp's older converters.
    """

    gate: Linear | None = weight("ffn_gate", "inner", "width")
    up: Linear
    down: Linear

    def __init__(self, sizes: LayerSizes) -> None:
        self.width, self.inner, self.activation = sizes.width, sizes.inner, sizes.activation
        self.swapped = False

    def declare(self, has: Callable[[str], bool]) -> None:
        """Declare the two matrices, under the names that the file has for them."""
        first, second = ("ffn_down", "ffn_up") if self.swapped else ("ffn_up", "ffn_down")
        self.up = weight(first, "inner", "width")
        self.down = weight(second, "width", "inner")

    def __call__(self, x: Tensor) -> Tensor:
        """Map (patches, width) to the same shape, without the residual."""
        if self.gate is None:
            return self.down(activated(self.activation, self.up(x)))
        return self.down(gated(self.activation, self.gate(x), self.up(x)))


class ClippedLinear(Module):
    """A matrix product whose inputs and outputs are clamped in some models of Gemma 4."""

    matrix: Tensor = weight("weight", "shape")
    input_min: Tensor | None = weight("input_min", 1)
    input_max: Tensor | None = weight("input_max", 1)
    output_min: Tensor | None = weight("output_min", 1)
    output_max: Tensor | None = weight("output_max", 1)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (patches, k) to (patches, m)."""
        x = _limit(x, self.input_min, self.input_max)
        return _limit(self.matrix.linear(x, None), self.output_min, self.output_max)


def _limit(x: Tensor, least: Tensor | None, most: Tensor | None) -> Tensor:
    x = x if least is None else x.maximum(least)
    return x if most is None else x.minimum(most)


class EncoderLayer(Module):
    """A pre-norm layer of attention and feed-forward with residuals, maybe with layer scales."""

    ln1: Norm
    attention: Attention
    scale1: Tensor | None = weight("ls1.weight", "width")
    ln2: Norm
    feed_forward: FeedForward
    scale2: Tensor | None = weight("ls2.weight", "width")

    def __init__(self, sizes: LayerSizes, *, head_norm: Norm | None = None) -> None:
        self.width = sizes.width
        self.ln1 = weight("ln1", "width", kind=sizes.make_norm(), needed=True)
        self.ln2 = weight("ln2", "width", kind=sizes.make_norm(), needed=True)
        self.attention = Attention(sizes, norm=head_norm)
        self.feed_forward = FeedForward(sizes)

    def __call__(self, x: Tensor, rotate: Rotate | None = None, runs: Sequence[int] = ()) -> Tensor:
        """Map (patches, width) to the same shape."""
        y = self.attention(self.ln1(x), rotate, runs)
        x = x.add(y if self.scale1 is None else y.mul(self.scale1))
        y = self.feed_forward(self.ln2(x))
        return x.add(y if self.scale2 is None else y.mul(self.scale2))


def rotation(
    context: Context,
    places: np.ndarray[tuple[int, int], np.dtype[np.int32]],
    head: int,
    *,
    base: float = 10000.0,
    interleaved: bool = False,
) -> Rotate:
    """Make 2-D RoPE: half of a head's pairs rotate by the patch's row, half by its column.

    Wang et al. 2024, "Qwen2-VL", §2.1, which follows Su et al. 2021 for each axis.

    Parameters
    ----------
    places : (patches, 2), i32
        Row and column of each patch.
    head : int
        Columns of a head, a multiple of 4.
    """
    positions = context.from_numpy(np.ascontiguousarray(places.T))
    return rotation_at(positions, head, base=base, interleaved=interleaved)


def rotation_at(
    positions: Tensor,
    head: int,
    *,
    base: float = 10000.0,
    interleaved: bool = False,
    alternate: bool = False,
    pairs: Literal["rows first", "columns first", "woven"] = "rows first",
) -> Rotate:
    """Make 2-D RoPE from tensors: half of a head's pairs rotate by row, half by column.

    Parameters
    ----------
    positions : (2, patches), i32
        All rows, then all columns. A graph input, since pictures with the same number of patches
        may differ in shape.
    head : int
        Columns of a head, a multiple of 4.
    alternate : bool
        Whether rows have the even and columns the odd frequencies of a head, as in Pixtral (Agrawal
        et al. 2024, §2.2). Else both have the same frequencies.
    pairs : str
        Which pairs of a head rotate by row: the first half, the second, or every second pair, after
        one that rotates by column, as in MoonViT (Kimi Team 2025, "Kimi-VL", §2.1).
    """
    quarter = head // 4
    # The published code also computes frequencies in f32.
    exponents = np.arange(0, 2 * quarter, 2, dtype=np.float32) / np.float32(2 * quarter)
    later = exponents + np.float32(2 / head) if alternate else exponents
    frequencies = np.float32(1) / np.float32(base) ** np.concatenate([exponents, later])
    context = positions.context
    order = np.repeat(np.arange(2, dtype=np.int32), quarter)
    if pairs != "rows first":
        order = order[::-1]
    if pairs == "woven":
        order, frequencies = (x.reshape(2, quarter).T.ravel() for x in (order, frequencies))
    axes = context.from_numpy(np.ascontiguousarray(order))
    table = positions.rope_table_axes(context.from_numpy(frequencies), axes, count=2)
    return lambda x: x.rope(table, interleaved=interleaved)


def split_windows(
    rows: int, columns: int, side: int, frames: int = 1
) -> tuple[np.ndarray[tuple[int], np.dtype[np.intp]], list[int]]:
    """Return the order of a picture's squares by attention windows, and the windows' sizes.

    Parameters
    ----------
    rows, columns : int
        Squares of the picture.
    side : int
        Squares along the side of a window; those at the right and lower edge may be smaller.
    frames : int
        Frames of a video, each with windows of its own.

    Returns
    -------
    order : (frames · squares,), int
        Squares, numbered by rows, window by window. Windows of one size in a frame follow each
        other.
    runs : list of int
        Squares of each window.
    """
    numbers = np.arange(rows * columns).reshape(rows, columns)
    parts = [
        numbers[i : i + side, j : j + side].ravel()
        for i in range(0, rows, side)
        for j in range(0, columns, side)
    ]
    # Windows do not depend on each other, so that they may be in any order.
    parts.sort(key=len, reverse=True)
    order = np.concatenate(parts) + rows * columns * np.arange(frames)[:, None]
    return order.ravel(), [len(part) for part in parts] * frames


__all__ = [
    "Attention",
    "ClippedLinear",
    "EncoderLayer",
    "FeedForward",
    "LayerSizes",
    "RMSNorm",
    "Rotate",
    "attend",
    "attend_to",
    "count_rows",
    "rotation",
    "rotation_at",
    "split_windows",
]
