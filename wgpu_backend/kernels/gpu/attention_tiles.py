"""Attention of many tokens on GPUs, in tiles, with arithmetic on pairs of f16.

Tokens of a prompt or a picture share keys, so a workgroup computes a tile of their query rows, and
loads blocks of keys and values into workgroup memory. A query row is rounded to f16 after a
division by a power of two, softmax's weights directly. Short sums are in f16, long ones and softmax
in f32. Prompts read a paged cache, image models and vision towers plain keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from wgpu_backend.dtypes import F16, F32, DType
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.kernels.gpu.products import tiles_in_f16
from wgpu_backend.kernels.gpu.subgroups import has_eight_lanes
from wgpu_backend.ops.attention.dot_product import scaled_attention
from wgpu_backend.ops.attention.paged import paged_attention, paged_attention_splits
from wgpu_backend.ops.attention.paged_kernels import count_rows, use_tiles
from wgpu_backend.ops.attention.paged_options import Scores
from wgpu_backend.ops.attention.scaled_kernels import in_vectors
from wgpu_backend.ops.op import find

FOLDER = "kernels/gpu"
THREADS = 128
# Lanes that share rows of scores.
CLUSTER = 8
# Weighted values that are summed in f16.
SUMMED = 16
VEC4_NBYTES = 8  # four values in f16
# With fewer rows, fewer tokens of a sequence, or fewer keys, most of a tile would be empty.
LEAST_ROWS, LEAST_TOKENS, LEAST_KEYS = 33, 5, 32
# Groups of eight columns that are summed in f16 at a time, the best first.
K_STEPS = (4, 3, 2)
# Rows of which a thread sums values, the best first: the more, the fewer reads of values.
V_ROWS = (8, 4)


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
        return min(K_STEPS, key=self._pad_eights)

    @property
    def k_eights(self) -> int:
        """Return the groups of eight columns of a key in memory, padded to whole steps."""
        return self._pad_eights(self.k_step)

    def _pad_eights(self, step: int) -> int:
        return ceil(self.k_vec4s / 2 / step) * step

    @property
    def v_eights(self) -> int:
        """Return the groups of eight columns of a value row in memory."""
        return ceil(self.v_vec4s / 2)

    @property
    def v_rows(self) -> int:
        """Return how many query rows a thread sums values for, so that few are idle."""
        return min(V_ROWS, key=lambda rows: rows * self._fours(rows))

    @property
    def v_lanes(self) -> int:
        """Return how many threads share the columns of a value row."""
        return self._lanes(self.v_rows)

    @property
    def v_fours(self) -> int:
        """Return how many vectors of a value row each thread sums."""
        return self._fours(self.v_rows)

    def _lanes(self, rows: int) -> int:
        return THREADS * rows // self.rows

    def _fours(self, rows: int) -> int:
        return ceil(self.v_vec4s / self._lanes(rows))

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
        # Two places for each key, two magnitudes; a range, a maximum and a factor for each row.
        return VEC4_NBYTES * vectors + 8 * (self.keys + 1) + 16 * self.rows

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
            "V_ROWS": self.v_rows,
            "PAIRS": self.v_rows // 2,
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
    return _fit(launch, capabilities) if plain and has_many_rows(launch) else None


def _fit(launch: Launch, capabilities: Capabilities) -> AttentionTile | None:
    """Return the first size that fits heads and device."""
    able = has_eight_lanes(capabilities) and tiles_in_f16(capabilities)
    if not able or capabilities.max_workgroup_invocations < THREADS:
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


def has_plain_rows(launch: Launch) -> bool:
    """Return whether rows over plain keys fill a tile, and heads are whole vectors."""
    rows, keys = launch.count("rows"), launch.count("keys")
    whole = launch.count("v_cols") % 4 == 0 and all(in_vectors(launch, name) for name in "kv")
    return launch.out.size > 0 and rows >= LEAST_ROWS and keys >= LEAST_KEYS and whole


def pick_plain_tile(launch: Launch, capabilities: Capabilities) -> AttentionTile | None:
    """Return the tile of attention over plain keys; None if the kernel does not support it.

    The device needs what `pick_tile` has. There must be as many rows and keys as fill a tile, and
    heads of whole vectors with at most 256 columns.
    """
    return _fit(launch, capabilities) if has_plain_rows(launch) else None


@scaled_attention.fuses("scaled_attention", name="scaled_attention_tiles", exact=False)
def plain_keys_in_f16(node: OpNode, graph: Graph) -> Node | None:
    """Replace attention over plain keys by the op with f16 products, if rounding is allowed."""
    kwargs = node.call.kwargs
    if kwargs.get("f16", False) or pick_plain_tile(node.launch, graph.capabilities) is None:
        return None
    return graph.call(find(node.op), *node.call.args, **{**kwargs, "f16": True})


def attend_plain_in_tiles(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Return the launch of attention over plain keys; None if rounding is off or no tile fits."""
    tile = pick_plain_tile(launch, capabilities) if launch.attributes else None
    if tile is None:
        return None
    narrow = all(launch.operands[name].spec.dtype == F16 for name in "kv")
    choices = {**tile.choices(), "RANGED": not narrow}
    return plain_launch(launch, "attention_tiled", tile.rows, choices)


def plain_launch(
    launch: Launch, kernel: str, step: int, choices: Mapping[str, str | int]
) -> Launch:
    """Return the launch of a kernel with tiles of `step` rows over plain keys."""
    batch, tokens, heads, _ = launch.operands["q"].spec.shape
    kv_heads = launch.operands["k"].spec.shape[2]
    rows = batch * tokens * heads // kv_heads
    return replace(
        launch,
        shader=f"{FOLDER}/{kernel}",
        groups=(kv_heads, ceil(rows / step), launch.count("splits")),
        params={**launch.params, "rows": rows, "step": step},
        choices={
            **launch.choices,
            **choices,
            "source": "lib/attention/plain_rows",
            **{n: f"formats/vec4/{launch.operands[n].spec.dtype}" for n in "kv"},
            # The kernel does not import these itself: another module does.
            **{n: f"formats/load/{launch.operands[n].spec.dtype}" for n in ("mask", "sinks")},
        },
    )


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
