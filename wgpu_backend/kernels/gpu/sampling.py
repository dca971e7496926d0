"""Top-k and the draw among the largest: keys in registers, ranks instead of sorts."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.kernels.refusal import no_kernel
from wgpu_backend.ops.check import require
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.sampling.sampling import (
    MAX_K,
    place_tokens,
    sample_into_reference,
    top_k_of_ids_reference,
    top_k_of_parts,
)

THREADS = 256
# Keys that a thread may hold in registers.
MOST_ITEMS = 64
# Keys that a thread holds of those that the parts kept.
WINNERS = 16
SHORTEST_PART = 4096


def top_k(launch: Launch, _: Capabilities) -> Launch | None:
    """Choose the largest of each part; None where a part has more keys than registers."""
    items = -(-launch.count("part") // THREADS)
    if items > MOST_ITEMS:
        return None
    return replace(
        launch,
        shader="kernels/gpu/top_k",
        choices={**launch.choices, **_register_choices(items, launch.count("k")), "WG": THREADS},
    )


def _register_choices(items: int, k: int) -> dict[str, int]:
    """Return how many keys each thread holds, for twice as many maxima as `k` if possible."""
    return {"ITEMS": items, "SUBSETS": 1 if 2 * k <= THREADS else 2}


@op(
    select=no_kernel("top_k_sample_into", "a GPU", "top_k_of_ids and sample_into"),
    shader="kernels/gpu/top_k_sample",
    dense=("x", "ids", "sampling", "draws"),
    trusted=True,
)
def top_k_sample_into(
    token_slots: Node, x: Node, ids: Node, sampling: Node, draws: Node, *, k: int
) -> Launch:
    """Choose a token of each row as `sample_into`, among the ids that its parts kept.

    Only a fusion rule makes this op.

    Parameters
    ----------
    token_slots, x, sampling, draws
        See `sample_into`.
    ids : (rows, n), i32
        See `top_k_of_ids`; at most 16,384.
    k : int
        Candidates, 1 to 256.

    Returns
    -------
    `token_slots` after the write.

    Raises
    ------
    ShapeError
        As `sample_into`, or `ids` or `k` are too many.
    DeviceError
        When it is run: the device has no kernel for it.
    """
    name = "top_k_sample_into"
    require(1 <= k <= MAX_K, ShapeError, f"{name}: k is {k}, needs 1 to {MAX_K}")
    launch = place_tokens(name, token_slots, x, ids, sampling, draws, THREADS * MOST_ITEMS)
    length = ids.spec.shape[1]
    return replace(
        launch,
        params={
            "cols": x.spec.shape[1],
            "k": k,
            "length": length,
            "places": token_slots.spec.shape[0],
        },
        choices={**_register_choices(-(-length // THREADS), k), "WG": THREADS},
        work=launch.work + 4 * length,
    )


@top_k_sample_into.reference
def top_k_sample_into_reference(
    token_slots: Array, x: Array, ids: Array, sampling: Array, draws: Array, *, k: int
) -> Array:
    """Choose a token of each row among the top-k ids of its parts."""
    return sample_into_reference(
        token_slots, x, top_k_of_ids_reference(x, ids, k=k), sampling, draws
    )


def sample(launch: Launch, _: Capabilities) -> Launch:
    """Choose a token with one thread per candidate."""
    return launch


@top_k_sample_into.fuses("sample_into")
def choice_among_the_largest(node: OpNode, graph: Graph) -> Node | None:
    """Fuse the top-k of a long row, in parts that fit registers, with the draw after it."""
    found = graph.single_use_producer(node.operands["ids"], "top_k_of_ids")
    parts = found and graph.single_use_producer(found.operands["ids"], "top_k_of_parts")
    if found is None or parts is None or graph.capabilities.software:
        return None
    token_slots, x, _, sampling, draws = node.call.args
    k, cols = found.options["k"], x.spec.shape[1]
    # More parts make more work groups, but their winners have to fit the second dispatch.
    part = max(-(-cols // (THREADS * WINNERS // k)), SHORTEST_PART)
    # The draw must be from the very logits whose largest were found.
    same = x.storage is found.operands["x"].storage is parts.operands["x"].storage
    if not same or part > THREADS * MOST_ITEMS:
        return None
    winners = graph.call(top_k_of_parts, x, k=k, part=part)
    return graph.call(top_k_sample_into, token_slots, x, winners, sampling, draws, k=k)
