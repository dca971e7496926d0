"""Attention of many tokens by matrix units, which multiply small matrices in one instruction.

As `attention_tiles`, with products of queries and keys, and of weights and values, by the units;
sums and softmax are in f32. Prompts read a paged cache, image models and vision towers plain keys,
which kernels before round to f16, once for all rows, unless they are f16 already.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from wgpu_backend.dtypes import F16, F32
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.kernels.gpu.attention_tiles import (
    FOLDER,
    cache_modules,
    has_many_rows,
    has_plain_rows,
    plain_launch,
)
from wgpu_backend.kernels.gpu.conv_matrix import f16_pixels, magnitudes, widened
from wgpu_backend.kernels.gpu.matrix import dialect
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.attention.dot_product import scaled_attention, scaled_attention_reference
from wgpu_backend.ops.attention.paged import paged_attention, paged_attention_splits
from wgpu_backend.ops.attention.paged_kernels import count_rows, use_tiles
from wgpu_backend.ops.attention.paged_options import Scores
from wgpu_backend.ops.check import require_dtype
from wgpu_backend.ops.op import find, op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.views import make_view

# Rows and keys of a work group, the best first.
SIZES = ((64, 64), (64, 32), (32, 32))
# By the most columns of a head: the tile, and how many subgroups share its rows. For wide heads one
# subgroup lacks registers for queries and sums, but each further one adds instructions.
SHARED = ((96, (64, 64), 1), (128, (64, 64), 4), (160, (64, 32), 2))
# Most columns of a key or a value: queries and sums lie in registers.
MOST_COLS = 160
SHADER = "kernels/gpu/attention_matrix"
# The module that reads rounded keys and values, see `f16_pixels`.
PLAIN = {"powers": f"{FOLDER}/lib/plain_powers"}
OPTIONS = ("scale", "causal", "window", "softcap", "splits")
VEC4_NBYTES = 8  # four values in f16
MOST_LANES = 16  # that load one key together


@dataclass(frozen=True, slots=True)
class MatrixTile:
    """The size of a workgroup's tile for matrix units: query rows and keys.

    Parameters
    ----------
    rows, keys : int
    k_vec4s, v_vec4s : int
        Vectors of four of a key and of a value.
    shares : int
        Subgroups that share rows, each with a part of the keys and of a value's columns.
    """

    rows: int
    keys: int
    k_vec4s: int
    v_vec4s: int
    unit: MatrixUnit
    shares: int = 1

    @property
    def matrices(self) -> int:
        """Return how many matrices of a subgroup lie along the rows."""
        return max(self.unit.subgroup // (2 * self.unit.m), 1)

    @property
    def row_threads(self) -> int:
        """Return how many threads share a row; 0 if there are more rows than threads."""
        return self.shares * self.unit.subgroup // (self.matrices * self.unit.m)

    @property
    def k_steps(self) -> int:
        """Return how many matrices cover a key's columns; the rest is padded with zeros."""
        return ceil(4 * self.k_vec4s / self.unit.k)

    @property
    def k_width(self) -> int:
        """Return the vectors of a key and the zeros after it."""
        return self.k_steps * self.unit.k // 4

    @property
    def k_lanes(self) -> int:
        """Return how many threads bring a key: a power of two that divides its vectors."""
        return min(self.k_width & -self.k_width, MOST_LANES)

    @property
    def v_tiles(self) -> int:
        """Return how many matrices cover a value's columns."""
        return ceil(4 * self.v_vec4s / self.unit.n)

    @property
    def rounds(self) -> int:
        """Return how many passes cover a value's columns, with `keys` columns in each."""
        return ceil(4 * self.v_vec4s / self.keys)

    @property
    def pitch(self) -> int:
        """Return the stride of queries and keys in memory, in vectors, with two of padding."""
        return self.k_width + 2

    @property
    def vectors(self) -> int:
        """Return how many vectors the largest of queries, keys and columns of values takes."""
        columns = self.v_tiles * self.unit.n
        return max(max(self.rows, self.keys) * self.pitch, columns * (self.keys // 4 + 2))

    @property
    def threads(self) -> int:
        """Return the threads of a work group."""
        return self.rows * self.row_threads

    @property
    def nbytes(self) -> int:
        """Return the workgroup memory of the kernel, in bytes."""
        # Scores are in f32, weights in f16.
        scores = 3 * VEC4_NBYTES * self.rows * (self.keys // 4 + 2)
        tile = VEC4_NBYTES * self.vectors
        # Two places for each key, a flag, a number for each thread.
        return tile + scores + 8 * self.keys + 4 * (self.threads + 1)

    def suits(self, capabilities: Capabilities) -> bool:
        """Return whether the unit divides the tile, and the kernel fits a device."""
        unit = self.unit
        keys = self.keys % (self.shares * unit.n), self.keys % unit.k
        rests = (self.rows % (self.matrices * unit.m), *keys)
        vectors = unit.n % 4 == unit.k % 4 == self.keys % 16 == 0
        return (
            not any(rests)
            and vectors
            and self.row_threads in (1, 2, 4, 8)
            # A thread finds the place of a key.
            and self.keys <= self.threads <= capabilities.max_workgroup_invocations
            and self.nbytes <= capabilities.max_workgroup_nbytes
        )

    def choices(self) -> dict[str, str | int]:
        """Return the shader's constants."""
        unit, threads = self.unit, self.threads
        # Four threads bring sixteen keys of a vector of columns.
        v_step = threads * 4 // self.keys
        return {
            "WG": threads,
            **dialect(unit, ("tile", "weights"), "scores"),
            "SUBGROUP": unit.subgroup,
            "SHARES": self.shares,
            "THREADS": self.row_threads,
            "ROWS": self.rows,
            "KEYS": self.keys,
            "RM": self.matrices,
            "K_VEC4S": self.k_vec4s,
            "K_STEPS": self.k_steps,
            "Q_ITEMS": ceil(self.k_steps * unit.k / 4 / self.row_threads),
            "K_LANES": self.k_lanes,
            "K_ITEMS": self.k_width // self.k_lanes,
            "K_ROUNDS": ceil(self.keys * self.k_lanes / threads),
            "KEY_TILES": self.keys // unit.n // self.shares,
            "KEY_STEPS": self.keys // unit.k,
            "V_VEC4S": self.v_vec4s,
            "V_TILES": self.v_tiles,
            "V_PARTS": ceil(self.v_tiles / self.shares),
            "V_SQUARES": ceil(self.v_vec4s / v_step),
            "V_STEP": v_step,
            "ROUNDS": self.rounds,
            "FOURS": self.keys // 4 // self.row_threads,
            "PITCH": self.pitch,
            "TILE": self.vectors,
        }


def pick_matrix_tile(launch: Launch, capabilities: Capabilities) -> MatrixTile | None:
    """Return the tile of an attention launch; None if the kernel does not support it."""
    unit = capabilities.matrix
    plain = "SHARED" not in launch.choices and launch.operands["k"].spec.dtype != F32
    if unit is None or not capabilities.f16 or not plain or not has_many_rows(launch):
        return None
    return _fit(launch, capabilities)


def _fit(launch: Launch, capabilities: Capabilities) -> MatrixTile | None:
    """Return the first size that fits heads and the device."""
    k_vec4s, v_vec4s = launch.count("k_vec4s"), launch.count("v_vec4s")
    wide = 4 * max(k_vec4s, v_vec4s) > MOST_COLS
    return None if wide else pick_size(k_vec4s, v_vec4s, capabilities)


def pick_size(k_vec4s: int, v_vec4s: int, capabilities: Capabilities) -> MatrixTile | None:
    """Return the first size that a device with units can take; None if it can take none.

    Parameters
    ----------
    k_vec4s, v_vec4s : int
        Vectors of four of a key and of a value.
    """
    unit, cols = capabilities.matrix, 4 * max(k_vec4s, v_vec4s)
    if unit is None:
        return None
    sizes = [(*size, shares) for most, size, shares in SHARED if cols <= most][:1]
    sizes += [(*size, 1) for size in SIZES]
    tiles = (MatrixTile(rows, keys, k_vec4s, v_vec4s, unit, n) for rows, keys, n in sizes)
    return next((tile for tile in tiles if tile.suits(capabilities)), None)


def pick_plain_tile(launch: Launch, capabilities: Capabilities) -> MatrixTile | None:
    """Return the tile of attention over plain keys; None if the kernel does not support it.

    There must be as many rows and keys as fill a tile, and heads that are whole vectors.
    """
    unit = capabilities.matrix
    fits = unit is not None and capabilities.f16 and has_plain_rows(launch)
    return _fit(launch, capabilities) if fits else None


@paged_attention.fuses("paged_attention", name="attention_matrix", exact=False)
@paged_attention_splits.fuses("paged_attention_splits", name="attention_matrix", exact=False)
def prompts_in_matrices(node: OpNode, graph: Graph) -> Node | None:
    """Replace a prompt's attention by the op on matrix units, if rounding is allowed."""
    scores: Scores = node.call.kwargs["scores"]
    if scores.matrix or pick_matrix_tile(node.launch, graph.capabilities) is None:
        return None
    kwargs = {**node.call.kwargs, "scores": replace(scores, f16=True, matrix=True)}
    return graph.call(find(node.op), *node.call.args, **kwargs)


def attend_in_matrices(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of attention on matrix units; None if rounding is off or no tile fits."""
    scores = launch.attributes
    if not (isinstance(scores, Scores) and scores.matrix):
        return None
    tile = pick_matrix_tile(launch, capabilities)
    if tile is None:
        return None
    choices = {**tile.choices(), **cache_modules(launch, f16=True)}
    found = use_tiles(launch, count_rows(launch), tile.rows, choices)
    return replace(found, shader=SHADER)


@op(
    select=no_kernel("rounded_attention", "matrix units", "scaled_dot_product_attention"),
    shader=SHADER,
    dense=("sinks",),
    trusted=True,
)
def rounded_attention(
    q: Node,
    k: Node,
    v: Node,
    mask: Node | None = None,
    sinks: Node | None = None,
    *,
    k_shape: Shape | None = None,
    v_shape: Shape | None = None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    splits: int = 1,
) -> Launch:
    """Attend to keys and values in f16 by matrix units, with sums in f32.

    Parameters
    ----------
    q, mask, sinks, scale, causal, window, softcap, splits
        See `scaled_attention`.
    k, v : (size + cols + 8,), f16
        See `f16_pixels`; without shapes, keys and values of these shapes in f16 as they are.
    k_shape, v_shape : (batch, keys, kv_heads, cols) or None
        Of their values; columns are whole vectors of four.

    Returns
    -------
    As `scaled_attention`.
    """
    for name, given in (("k", k), ("v", v)):
        require_dtype("rounded_attention", name, given, (F16,))
    keys, values = (
        make_view(n, Spec.dense(shape, F16)) if shape else n
        for n, shape in ((k, k_shape), (v, v_shape))
    )
    launch = scaled_attention.record(
        q,
        keys,
        values,
        mask,
        sinks,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        splits=splits,
    )
    return replace(launch, attributes="rounded" if k_shape else "f16")


@rounded_attention.reference
def rounded_attention_reference(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    sinks: Array | None = None,
    *,
    k_shape: Shape | None = None,
    v_shape: Shape | None = None,
    scale: float,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
    splits: int = 1,
) -> Array:
    """Attend with all scores at once."""
    return scaled_attention_reference(
        q,
        widened(k, k_shape) if k_shape else k,
        widened(v, v_shape) if v_shape else v,
        mask,
        sinks,
        scale=scale,
        causal=causal,
        window=window,
        softcap=softcap,
        splits=splits,
    )


@rounded_attention.fuses("scaled_attention", name="scaled_attention_matrix", exact=False)
def plain_keys_in_matrices(node: OpNode, graph: Graph) -> Node | None:
    """Replace attention over plain keys by the op on matrix units, if rounding is allowed."""
    if pick_plain_tile(node.launch, graph.capabilities) is None:
        return None
    q, k, v, *rest = node.call.args
    how = {name: node.call.kwargs[name] for name in OPTIONS if name in node.call.kwargs}
    if k.spec.dtype == v.spec.dtype == F16:
        return graph.call(rounded_attention, q, k, v, *rest, **how)
    rounded = (graph.call(f16_pixels, each, graph.shared(magnitudes, each)) for each in (k, v))
    shapes = {"k_shape": k.spec.shape, "v_shape": v.spec.shape}
    return graph.call(rounded_attention, q, *rounded, *rest, **shapes, **how)


def attend_plain_in_matrices(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of attention over keys in f16; None if no tile fits."""
    tile = pick_plain_tile(launch, capabilities)
    if tile is None:
        return None
    powers = PLAIN if launch.attributes == "rounded" else {}
    return plain_launch(launch, "attention_matrix", tile.rows, {**tile.choices(), **powers})
