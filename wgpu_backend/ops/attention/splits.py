"""Long attention in parallel ranges of positions: their number, and the merge of their results.

Source: Dao et al. 2023, "Flash-Decoding".
"""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

# Positions that are worth a work group of their own, and of a prompt, whose groups bring more rows.
SPLIT_POSITIONS, SPLIT_POSITIONS_OF_A_PROMPT = 128, 256
# Fewer positions are not worth the dispatch that joins splits.
UNSPLIT_POSITIONS = 512
# With so many work groups a device is busy without splitting.
ENOUGH_GROUPS = 256
# Groups of a prompt compute long: a large card holds four of them on each of its cores. Tiles in
# f16 have the rows of eight groups as they are counted here.
ENOUGH_GROUPS_OF_A_PROMPT = 4096


def useful_splits(seen: int, groups: int, *, prompt: bool = False) -> int:
    """Return how many ranges to cut `seen` positions into, with `groups` groups each.

    Parameters
    ----------
    prompt : bool
        Whether tokens share keys.
    """
    enough = ENOUGH_GROUPS_OF_A_PROMPT if prompt else ENOUGH_GROUPS
    positions = SPLIT_POSITIONS_OF_A_PROMPT if prompt else SPLIT_POSITIONS
    worth = seen // positions if seen >= UNSPLIT_POSITIONS else 1
    return max(min(worth, enough // max(groups, 1)), 1)


@op(trusted=True)
def attention_merge(x: Node) -> Launch:
    """Merge attention over ranges of positions.

    Parameters
    ----------
    x : (tokens, heads, splits, cols + 4), f32
        Unnormalised sums of a range, then its largest score, its total, and two values unused.

    Returns
    -------
    (tokens, heads, cols), f32.
    """
    require_rank("attention_merge", "x", x, 4)
    tokens, heads, splits, width = x.spec.shape
    out = Spec.dense((tokens, heads, width - 4), F32)
    return Launch(
        out,
        {"x": x},
        threads=out.size // 4,
        params={"size": out.size // 4, "splits": splits, "vec4s": (width - 4) // 4},
        work=x.spec.nbytes,
    )


@attention_merge.reference
def attention_merge_reference(x: Array) -> Array:
    """Merge splits by their largest scores and totals."""
    cols = x.shape[-1] - 4
    # Each split is relative to its own largest score.
    factor = np.exp(x[..., cols] - x[..., cols].max(axis=-1, keepdims=True))
    total = (x[..., cols + 1] * factor).sum(axis=-1)
    # A total of 0 is that of a token that sees nothing; its sums are 0, too.
    return (x[..., :cols] * factor[..., None]).sum(axis=-2) / np.maximum(total, 1e-37)[..., None]


def in_first_split(whole: Array, splits: int) -> Array:
    """Store a whole result of (tokens, heads, cols) as splits of which only the first has sums."""
    tokens, heads, cols = whole.shape
    y = np.zeros((tokens, heads, splits, cols + 4), np.float32)
    # The lowest finite value: -inf less -inf would be NaN.
    y[..., cols] = np.finfo(np.float32).min
    y[:, :, 0, :cols] = whole
    y[:, :, 0, cols : cols + 2] = (0.0, 1.0)
    return y
