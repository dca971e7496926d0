"""Attention of prompts on GPUs, in tiles, with arithmetic on pairs of f16.

A prompt's tokens share keys, so a workgroup computes a tile of their query rows, and loads blocks
of keys and values into workgroup memory. A query row is rounded to f16 after a division by a power
of two, softmax's weights directly. Short sums are in f16, long ones and softmax in f32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from wgpu_backend.dtypes import F16, F32, DType
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.kernels.gpu.products import tiles_in_f16
from wgpu_backend.kernels.gpu.subgroups import has_eight_lanes
from wgpu_backend.ops.attention.paged import paged_attention, paged_attention_splits
from wgpu_backend.ops.attention.paged_kernels import count_rows, use_tiles
from wgpu_backend.ops.attention.paged_options import Scores
from wgpu_backend.ops.op import find

FOLDER = "kernels/gpu"
THREADS = 128
# Lanes that share rows of scores.
CLUSTER = 8
# Weighted values that are summed in f16.
SUMMED = 16
VEC4_NBYTES = 8  # four values in f16
# With fewer rows, or fewer tokens of a sequence, most of a tile would be empty.
LEAST_ROWS, LEAST_TOKENS = 33, 5


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """The size of a workgroup's tile: query rows and keys.

    Parameters
    ----------
    rows, keys : int
        Rows of a tile, and keys of a block in workgroup memory.
    k_vec4s, v_vec4s : int
        Vectors of four values in a key, and in a value row.
    """

    rows: int
    keys: int
    k_vec4s: int
    v_vec4s: int

    @property
    def k_step(self) -> int:
        """Return how many groups of eight columns are summed in f16 at a time."""
        return 4 if self.k_vec4s % 8 == 0 else 2

    @property
    def k_eights(self) -> int:
        """Return the groups of eight columns of a key in memory, padded to whole steps."""
        return ceil(self.k_vec4s / 2 / self.k_step) * self.k_step

    @property
    def v_eights(self) -> int:
        """Return the groups of eight columns of a value row in memory."""
        return ceil(self.v_vec4s / 2)

    @property
    def v_lanes(self) -> int:
        """Return how many threads share the columns of a value row; each sums eight query rows."""
        return THREADS * 8 // self.rows

    @property
    def v_fours(self) -> int:
        """Return how many vectors of a value row each thread sums."""
        return ceil(self.v_vec4s / self.v_lanes)

    @property
    def pitch(self) -> int:
        """Return the stride of rows in memory, in vectors: a multiple of two."""
        # Threads after the last column read padding, and store nothing.
        return max(2 * self.k_eights, self.v_fours * self.v_lanes) + 2

    @property
    def nbytes(self) -> int:
        """Return the workgroup memory of the kernel, in bytes."""
        weights = self.keys * (self.rows // 4 + 2)
        vectors = (self.rows + self.keys) * self.pitch + weights
        # A slot for each key; a range, a maximum and a factor for each row.
        return VEC4_NBYTES * vectors + 4 * self.keys + 16 * self.rows

    def choices(self) -> dict[str, int]:
        """Return the shader's constants."""
        return {
            "WG": THREADS,
            "ROWS": self.rows,
            "KEYS": self.keys,
            "SCORE_ROWS": self.rows * CLUSTER // THREADS,
            "SCORE_KEYS": self.keys // CLUSTER,
            "K_VEC4S": self.k_vec4s,
            "K_EIGHTS": self.k_eights,
            "K_STEP": self.k_step,
            "K_ITEMS": ceil(self.keys * self.k_eights / THREADS),
            "V_VEC4S": self.v_vec4s,
            "V_EIGHTS": self.v_eights,
            "V_ITEMS": ceil(self.keys * self.v_eights / THREADS),
            "V_FOURS": self.v_fours,
            "V_LANES": self.v_lanes,
            "SUMMED": SUMMED,
            "PITCH": self.pitch,
        }


# Rows, keys and the most columns of a key or value of each tile, the fastest first.
SIZES = ((64, 64, 128), (64, 32, 128), (32, 32, 256), (32, 16, 256))


def has_many_rows(launch: Launch) -> bool:
    """Return whether tokens fill a tile, most of them of one sequence."""
    rows = count_rows(launch)
    return rows.tokens * rows.group >= LEAST_ROWS and rows.tokens >= LEAST_TOKENS * rows.sequences


def pick_tile(launch: Launch, capabilities: Capabilities) -> AttentionTile | None:
    """Return the tile of an attention launch; None if the kernel does not support it.

    The device needs subgroups of eight lanes, arithmetic in f16 and enough workgroup memory. The
    launch needs many tokens of a sequence, keys in another dtype than f32, heads of at most 256
    columns, and values that are not columns of the keys.
    """
    plain = "SHARED" not in launch.choices and launch.operands["k"].spec.dtype != F32
    able = has_eight_lanes(capabilities) and tiles_in_f16(capabilities)
    fits = capabilities.max_workgroup_invocations >= THREADS
    if not (plain and able and fits and has_many_rows(launch)):
        return None
    k_vec4s, v_vec4s = launch.count("k_vec4s"), launch.count("v_vec4s")
    tiles = (
        AttentionTile(rows, keys, k_vec4s, v_vec4s)
        for rows, keys, cols in SIZES
        if 4 * max(k_vec4s, v_vec4s) <= cols
    )
    return next((t for t in tiles if t.nbytes <= capabilities.max_workgroup_nbytes), None)


@paged_attention.fuses("paged_attention", name="attention_tiles", exact=False)
@paged_attention_splits.fuses("paged_attention_splits", name="attention_tiles", exact=False)
def prompts_in_f16(node: OpNode, graph: Graph) -> Node | None:
    """Replace a prompt's attention by the op with f16 products, if rounding is allowed."""
    scores: Scores = node.call.kwargs["scores"]
    rows = count_rows(node.launch)
    if scores.f16 or rows.tokens <= rows.sequences:
        return None
    if pick_tile(node.launch, graph.capabilities) is None:
        return None
    kwargs = {**node.call.kwargs, "scores": replace(scores, f16=True)}
    return graph.call(find(node.op), *node.call.args, **kwargs)


def attend_in_tiles(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of tiled attention in f16; None if rounding is off or no tile fits."""
    scores = launch.attributes
    if not (isinstance(scores, Scores) and scores.f16):
        return None
    tile = pick_tile(launch, capabilities)
    if tile is None:
        return None
    choices = {**tile.choices(), **cache_modules(launch, f16=True)}
    found = use_tiles(launch, count_rows(launch), tile.rows, choices)
    return replace(found, shader=f"{FOLDER}/attention_tiled")


def cache_modules(launch: Launch, *, f16: bool) -> dict[str, str]:
    """Return the shader modules that read keys and values."""
    chosen = {name: str(launch.choices[name]) for name in "kv"}
    return {
        name: _cache(path, launch.operands[name].spec.dtype, f16=f16)
        for name, path in chosen.items()
    }


def _cache(path: str, dtype: DType, *, f16: bool) -> str:
    """Return the shader module that reads a cache on a GPU, in place of the portable module.

    If values are columns of keys, they have no module of their own.
    """
    if path.startswith("="):
        return path
    written = path.startswith("lib/attention/cache_")
    if dtype.quantised and not written:
        return f"{FOLDER}/lib/cache_{dtype}"
    if dtype == F16 and f16:
        return f"{FOLDER}/lib/cache_f16{'_written' if written else ''}"
    return path
