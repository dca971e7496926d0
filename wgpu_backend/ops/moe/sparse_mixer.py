"""SparseMixer: weights of experts, each by a softmax of its own."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, pad_to_4d, require, require_dtype, require_rank
from wgpu_backend.ops.moe.experts import used_by
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array

NAME = "sparse_mixer"


@op(dense=("x",), trusted=True)
def sparse_mixer(x: Node, ids: Node, *, margin: float) -> Launch:
    """Weigh each chosen expert by a softmax over itself and experts of slightly lower scores.

    Source: Liu et al. 2023, "Sparse Backpropagation for MoE Training", algorithm 1, without the
    noise.

    Parameters
    ----------
    x : (tokens, experts), f32, f16 or bf16
        Scores.
    ids : (tokens, used), i32
        Chosen experts; what an id outside ``0 … experts - 1`` gives is undefined.
    margin : float
        By how much others may be worse to count, as a part of ``max(abs(other), best)``.

    Returns
    -------
    (tokens, used), f32

    Raises
    ------
    ShapeError
        There are no experts, or numbers of tokens differ.
    """
    require_rank(NAME, "x", x, 2, 2)
    require_dtype(NAME, "x", x, FLOATS)
    tokens, experts = x.spec.shape
    require(experts > 0, ShapeError, f"{NAME}: x is {x.spec.shape}, needs at least one expert")
    used = used_by(NAME, ids, tokens)
    out = Spec.dense((tokens, used), F32)
    return Launch(
        out,
        {"x": x, "ids": ids},
        threads=out.size,
        params={
            "size": out.size,
            "experts": experts,
            "used": used,
            "margin": margin,
            "ids_strides": pad_to_4d(ids.spec.strides, 0),
        },
        work=4 * experts * out.nbytes,
    )


@sparse_mixer.reference
def sparse_mixer_reference(x: Array, ids: Array, *, margin: float) -> Array:
    """Return one over the sum of exponentials of scores nearly as good, but no better."""
    scores = x.astype(np.float32)[:, None]
    best = np.take_along_axis(scores[:, 0], ids, axis=1)[..., None]
    below = best - scores
    # As Phi-3.5-MoE's `sparsemixer`: scores outside the margin do not count.
    counts = (below >= 0) & (below <= np.float32(margin) * np.maximum(np.abs(scores), best))
    return 1 / np.where(counts, np.exp(-np.abs(below)), np.float32(0)).sum(-1)
