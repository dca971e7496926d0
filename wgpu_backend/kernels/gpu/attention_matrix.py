"""Attention of many tokens by matrix units, which multiply small matrices in one instruction.

As `attention_tiles`, with products of queries and keys, and of weights and values, by the units;
sums and softmax are in f32. Prompts read a paged cache, image models and vision towers plain keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.kernels.gpu.attention_tiles import (
    FOLDER,
    cache_modules,
    has_many_rows,
    has_plain_rows,
    plain_launch,
)
from wgpu_backend.kernels.gpu.matrix import dialect
from wgpu_backend.ops.attention.dot_product import scaled_attention
from wgpu_backend.ops.attention.paged import paged_attention, paged_attention_splits
from wgpu_backend.ops.attention.paged_kernels import count_rows, use_tiles
from wgpu_backend.ops.attention.paged_options import Scores
from wgpu_backend.ops.op import find

# Rows and keys of a work group, the best first.
SIZES = ((64, 64), (64, 48), (32, 32))
# Subgroups that share rows of the first size, by the most columns of a head: a subgroup alone lacks
# registers for queries and sums of more columns. Every share adds instructions, and four do not
# help heads of more columns than these.
SHARES = ((80, 1), (96, 2), (128, 4))
# Most columns of a value: its sums lie in registers. Over plain keys the kernel without units is so
# much slower that registers in memory cost less.
MOST_COLS, MOST_PLAIN_COLS = 128, 160
VEC4_NBYTES = 8  # four values in f16


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
    def rounds(self) -> int:
        """Return how many passes cover a value's columns, with `keys` columns in each."""
        return ceil(4 * self.v_vec4s / self.keys)

    @property
    def pitch(self) -> int:
        """Return the stride of queries and keys in memory, in vectors, with two of padding."""
        return self.k_steps * self.unit.k // 4 + 2

    @property
    def vectors(self) -> int:
        """Return the vectors of queries, keys or columns of values, the most of them."""
        columns = ceil(4 * self.v_vec4s / self.unit.n) * self.unit.n
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
        # Two places for each key, two magnitudes, a number for each thread.
        return tile + scores + 8 * (self.keys + 1) + 4 * self.threads

    def suits(self, capabilities: Capabilities) -> bool:
        """Return whether the unit divides the tile, and the kernel fits a device."""
        unit = self.unit
        keys = self.keys % (self.shares * unit.n), self.keys % unit.k
        rests = (self.rows % (self.matrices * unit.m), *keys)
        vectors = unit.n % 4 == unit.k % 4 == 0
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
            "K_ITEMS": ceil(self.keys * self.k_steps * unit.k / 4 / threads),
            "KEY_TILES": self.keys // unit.n // self.shares,
            "KEY_STEPS": self.keys // unit.k,
            "V_VEC4S": self.v_vec4s,
            "V_TILES": ceil(4 * self.v_vec4s / unit.n),
            "V_SQUARES": ceil(self.keys // 4 * self.v_vec4s / threads),
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
    return _fit(launch, capabilities, MOST_COLS)


def _fit(launch: Launch, capabilities: Capabilities, most: int) -> MatrixTile | None:
    """Return the first size that fits heads of up to `most` columns, and the device."""
    k_vec4s, v_vec4s = launch.count("k_vec4s"), launch.count("v_vec4s")
    return None if 4 * max(k_vec4s, v_vec4s) > most else pick_size(k_vec4s, v_vec4s, capabilities)


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
    shares = next((count for highest, count in SHARES if cols <= highest), 1)
    sizes = [(*SIZES[0], shares), *((*size, 1) for size in SIZES)]
    tiles = (MatrixTile(rows, keys, k_vec4s, v_vec4s, unit, n) for rows, keys, n in sizes)
    return next((tile for tile in tiles if tile.suits(capabilities)), None)


def pick_plain_tile(launch: Launch, capabilities: Capabilities) -> MatrixTile | None:
    """Return the tile of attention over plain keys; None if the kernel does not support it.

    Keys need no mask, as many rows and keys as fill a tile, and heads that are whole vectors.
    """
    unit = capabilities.matrix
    if unit is None or not capabilities.f16 or launch.choices["MASKED"]:
        return None
    if not has_plain_rows(launch):
        return None
    return _fit(launch, capabilities, MOST_PLAIN_COLS)


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
    return replace(found, shader=f"{FOLDER}/attention_matrix")


@scaled_attention.fuses("scaled_attention", name="scaled_attention_matrix", exact=False)
def plain_keys_in_matrices(node: OpNode, graph: Graph) -> Node | None:
    """Replace attention over plain keys by the op on matrix units, if rounding is allowed."""
    done = node.call.kwargs.get("matrix", False)
    if done or pick_plain_tile(node.launch, graph.capabilities) is None:
        return None
    return graph.call(find(node.op), *node.call.args, **{**node.call.kwargs, "matrix": True})


def attend_plain_in_matrices(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of attention over plain keys; None if rounding is off or no tile fits."""
    tile = pick_plain_tile(launch, capabilities) if launch.attributes == "matrix" else None
    if tile is None:
        return None
    return plain_launch(launch, "attention_matrix", tile.rows, tile.choices())
