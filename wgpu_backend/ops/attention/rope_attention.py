"""One op for the norms, rotation, cache write and attention of one token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wgpu_backend.dtypes import F32, U32
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Callee, Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.attention.paged import paged_attention_reference, paged_launch
from wgpu_backend.ops.attention.paged_kernels import select_tiles
from wgpu_backend.ops.attention.paged_options import Scores
from wgpu_backend.ops.attention.rope_put import rope_put_reference
from wgpu_backend.ops.check import require
from wgpu_backend.ops.linear.q8 import GROUP, WORDS
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.norm import rms_norm_reference
from wgpu_backend.ops.reference import Array, get_reference

# Storage bindings with positions and sequences apart, without norms, and with the value next to the
# key.
BINDINGS = 9
NORMS = ("query_norm", "key_norm")
# Operands that may be missing.
EXTRAS = (*NORMS, "sinks")


def select_prepared(launch: Launch, capabilities: Capabilities) -> Launch:
    """Select a kernel of attention that normalises, rotates and writes first.

    Raises
    ------
    DeviceError
        The device shows too few buffers, or its kernel of attention is a plain one.
    """
    more = more_bindings(launch)
    if not has_kernel(capabilities, more):
        raise DeviceError(
            f"rope_attention: the device binds {capabilities.max_storage_bindings} buffers at "
            f"once, needs {BINDINGS + more}, and a kernel of attention by tiles; use rope_put, "
            "and paged_attention"
        )
    return select_tiles(launch, capabilities)


def has_kernel(capabilities: Capabilities, more: int = 0) -> bool:
    """Return whether a device has enough bindings and more than the plain attention kernel."""
    return capabilities.compiles_tiles and has_bindings(capabilities, more)


def has_bindings(capabilities: Capabilities, more: int = 0) -> bool:
    """Return whether a device has `more` storage bindings than WebGPU's minimum."""
    return capabilities.max_storage_bindings >= BINDINGS + more


def more_bindings(launch: Launch) -> int:
    """Count the bindings of a launch beyond the required ones: norms, sinks, separate values."""
    others = sum(name in launch.operands for name in EXTRAS)
    return others + _lies_apart(launch.operands["q"], launch.operands["new_value"])


@op(
    shader="ops/attention/attention",
    select=select_prepared,
    dense=("angles", "slot", "table"),
    trusted=True,
)
def rope_attention(
    q: Node,
    key: Node,
    value: Node,
    angles: Node,
    slot: Node,
    k: Node,
    v: Node,
    positions: Node,
    sequences: Node,
    table: Node,
    query_norm: Node | None = None,
    key_norm: Node | None = None,
    *,
    interleaved: bool,
    scores: Scores,
    eps: float = 0.0,
    sinks: Node | None = None,
    rounds: bool = False,
) -> Launch:
    """Rotate a token's queries and key, put key and value into the cache, and attend to it.

    Only fusion rules make this op, from a `rope_put` and the attention that reads its result, and
    from the `rms_norm` of each head before them if the model has those. A work group rotates the
    queries it needs itself, so none depends on writes of another.

    Parameters
    ----------
    q : (1, heads, cols)
        f32; written.
    key : (1, kv_heads, cols)
        f32.
    value : (1, kv_heads, v_cols), f32
        They are parts of one tensor, the value perhaps of another, and neighbouring heads are
        neighbours there. `cols` and `v_cols` are multiples of 8, offsets of 4.
    angles : (1, pairs, 2), f32
        From `rope_table`; `pairs` a multiple of 4.
    slot : (1,), i32
        Row of the cache; one outside it is dropped.
    k, v : states, f32 or f16; written
    positions, sequences, table, scores
        See `paged_attention`.
    query_norm, key_norm : (cols,), f32, or None
        Weights of a norm of each head, both or none; heads are rotated after it.
    interleaved : bool
        See `rope`.
    eps : float
        Of the norms.
    sinks : (heads,), or None
        See `attention`.
    rounds : bool
        Give what `paged_attention_q8` gives.

    Returns
    -------
    (1, heads, v_cols), f32, or (1, heads * v_cols / 32, 12), u32

    Raises
    ------
    ShapeError
        There are several tokens, the three lie apart, angles or slot are parts of a tensor, or
        norms do not fit heads.
    DeviceError
        When it is run: the device has no kernel for it.
    """
    operands = (q, key, value, angles, slot, k, v, positions, sequences, table)
    norms = (query_norm, key_norm)
    launch = prepared_launch(
        *operands, norms, interleaved=interleaved, scores=scores, eps=eps, sinks=sinks
    )
    return round_result("rope_attention", launch) if rounds else launch


@rope_attention.reference
def rope_attention_reference(
    q: Array,
    key: Array,
    value: Array,
    angles: Array,
    slot: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    query_norm: Array | None = None,
    key_norm: Array | None = None,
    *,
    interleaved: bool,
    scores: Scores,
    eps: float = 0.0,
    sinks: Array | None = None,
    rounds: bool = False,
) -> Array:
    """Apply norms and `rope_put`, then attend to the cache."""
    if query_norm is not None:
        q[...] = rms_norm_reference(q, query_norm, eps=eps)
        key = rms_norm_reference(key, key_norm, eps=eps)
    q[...] = rope_put_reference(q, key, value, angles, slot, k, v, interleaved=interleaved)
    # Found by name: that op belongs to a kernel family, which imports this file.
    attend = get_reference("paged_attention_q8") if rounds else paged_attention_reference
    return attend(q, k, v, positions, sequences, table, scores=scores, sinks=sinks)


def prepared_launch(
    q: Node,
    key: Node,
    value: Node,
    angles: Node,
    slot: Node,
    k: Node,
    v: Node,
    positions: Node,
    sequences: Node,
    table: Node,
    weights: tuple[Node | None, Node | None],
    *,
    interleaved: bool,
    scores: Scores,
    eps: float,
    sinks: Node | None = None,
    splits: int = 1,
    most_tokens: int = 1,
) -> Launch:
    """Return a launch over the operands of `rope_attention`, for up to `most_tokens` tokens."""
    _require_places(angles, slot)
    _require_tokens(q, key, value, most_tokens)
    operands = {
        "q": q, "k": k, "v": v, "positions": positions, "sequences": sequences, "table": table,
        "sinks": sinks,
    }  # fmt: skip
    launch = paged_launch(operands, scores=scores, splits=splits)
    new = {"new_key": key, "new_value": value, "angles": angles, "slot": slot}
    norms = _norms(q, *weights)
    return replace(
        launch,
        operands={**launch.operands, **new, **norms},
        params={**launch.params, "eps": eps},
        choices={
            **launch.choices,
            **_prologue_choices(launch, new),
            "prologue": "lib/attention/norm_rope_put" if norms else "lib/attention/rope_put",
            "INTERLEAVED": interleaved,
        },
        # Queries are written, too: work groups read rotated ones where they lie.
        writes=("q", "k", "v"),
    )


def round_result(name: str, launch: Launch) -> Launch:
    """Return an attention launch whose result is stored in eight bits.

    Raises
    ------
    ShapeError
        A head is not made of whole groups.
    """
    tokens, heads, v_cols = launch.out.shape
    require(
        v_cols % GROUP == 0,
        ShapeError,
        f"{name}: values of a head are {v_cols}, needs a multiple of {GROUP}",
    )
    out = Spec.dense((tokens, heads * v_cols // GROUP, WORDS), U32)
    return replace(launch, out=out, choices={**launch.choices, "ROUNDED": True})


def _require_places(angles: Node, slot: Node) -> None:
    require(
        not angles.spec.offset and not slot.spec.offset,
        ShapeError,
        f"rope_attention: angles and slot begin at {angles.spec.offset} and {slot.spec.offset} of "
        "their tensors, need 0; call contiguous()",
    )


def _require_tokens(q: Node, key: Node, value: Node, most: int) -> None:
    require(
        q.spec.shape[0] <= most and lie_together(q, key) and _in_vectors(value),
        ShapeError,
        f"rope_attention: q, key and value are {q.spec}, {key.spec}, {value.spec}; needs "
        f"{'one token' if most == 1 else f'{most} tokens at most'}, and parts of one tensor, of "
        "which the value alone may be another",
    )


def _norms(q: Node, *weights: Node | None) -> dict[str, Node]:
    """Return the norm operands of a kernel; none where it has no norms."""
    norms = {name: w for name, w in zip(NORMS, weights, strict=True) if w is not None}
    for name, weight in norms.items():
        require(
            len(norms) == len(NORMS) and weight_fits(weight, q),
            ShapeError,
            f"rope_attention: {name} is {weight.spec.shape} {weight.spec.dtype}, heads have "
            f"{q.spec.shape[2]} values; needs weights for both norms, f32 and dense",
        )
    return norms


def weight_fits(weight: Node, q: Node) -> bool:
    """Return whether a kernel can read this weight of a norm of heads."""
    spec = weight.spec
    return (
        spec.dtype == F32 and spec.shape == q.spec.shape[2:] and spec.is_dense and not spec.offset
    )


def _prologue_choices(launch: Launch, new: Mapping[str, Node]) -> dict[str, str | int]:
    """Return the shader choices of attention that first rotates, and writes its cache."""
    apart = _lies_apart(launch.operands["q"], new["new_value"])
    states = {name: f"lib/attention/cache_{launch.operands[name].spec.dtype}" for name in "kv"}
    return {
        **states,
        "q": "formats/store/f32",
        # One binding for both: they are parts of one tensor.
        "new_key": "=q",
        "new_value": "formats/load/f32" if apart else "=q",
        "COLS": launch.operands["q"].spec.shape[2],
        "V_COLS": new["new_value"].spec.shape[2],
        "PAIRS": new["angles"].spec.shape[1],
        "KEY_AT": new["new_key"].spec.offset,
        "VALUE_AT": new["new_value"].spec.offset,
        **_token_choices(new["new_value"]),
    }


def _token_choices(value: Node) -> dict[str, int]:
    """Return the shader choices of a kernel for several tokens; empty for other kernels."""
    tokens, stride = value.spec.shape[0], value.spec.strides[0]
    return {"TOKENS": tokens, "VALUE_STRIDE": stride} if tokens > 1 else {}


def lie_together(*parts: Node) -> bool:
    """Return whether heads are parts of one tensor, as `_in_vectors` requires."""
    steps = {part.spec.strides[0] for part in parts if part.spec.shape[0] > 1}
    alike = len({part.storage for part in parts}) == 1 and len(steps) < 2
    return alike and all(map(_in_vectors, parts))


def _in_vectors(heads: Node) -> bool:
    """Return whether heads are adjacent in their tensor and begin at a multiple of four values."""
    spec = heads.spec
    # Of one token, no stride leads to the next.
    step = spec.strides[0] if spec.shape[0] > 1 else 0
    return spec.strides[1:] == (spec.shape[2], 1) and spec.offset % 4 == step % 4 == 0


def _lies_apart(q: Node, value: Node) -> bool:
    """Return whether values are in another tensor than queries: their weights' formats differ."""
    return value.storage is not q.storage


@rope_attention.fuses("paged_attention", "paged_attention_q8")
def with_rotation_and_write(node: OpNode, graph: Graph) -> Node | None:
    """Fuse the attention of one token with the `rope_put` before it."""
    if not has_kernel(graph.capabilities):
        return None
    return fuse_prologue(node, graph, rope_attention, rounds=node.op == "paged_attention_q8")


def fuse_prologue(
    node: OpNode, graph: Graph, op: Callee, most_tokens: int = 1, **options: bool | int
) -> Node | None:
    """Fuse the attention of few tokens and the preceding `rope_put` into the op `op`."""
    put = graph.single_use_producer(node.operands["q"], "rope_put")
    if (
        put is None
        or not 0 < put.spec.shape[0] <= most_tokens
        # `rope_attention` has no such operands.
        or {"ends", "bias"} & node.operands.keys()
    ):
        return None
    q, key, value, angles, slot, keys, values = put.call.args
    norms = [norm for x in (q, key) if (norm := graph.single_use_producer(x, "rms_norm"))]
    sinks = node.operands.get("sinks")
    arguments = _norm_arguments(norms, graph.capabilities, 0 if sinks is None else 1)
    if arguments is None:
        return None
    q, key = (norm.operands["x"] for norm in norms) if norms else (q, key)
    # The kernel writes rotated queries over `q`, so it may not be an input or a weight.
    fits = lie_together(q, key) and _in_vectors(value) and q.storage.kind == "intermediate"
    fits = fits and not angles.spec.offset and not slot.spec.offset
    same = (
        keys.storage is node.operands["k"].storage and values.storage is node.operands["v"].storage
    )
    if not fits or not same or not graph.read_by(q.storage, put, *norms):
        return None
    if not graph.absorb(put, node):
        return None
    return graph.call(
        op,
        *(q, key, value, angles, slot, keys, values),
        *(node.operands[name] for name in ("positions", "sequences", "table")),
        **put.call.kwargs,
        **arguments,
        scores=node.call.kwargs["scores"],
        sinks=sinks,
        **options,
    )


def _norm_arguments(
    norms: Sequence[OpNode], capabilities: Capabilities, others: int
) -> dict[str, Any] | None:
    """Return the arguments for the norms found; None if no kernel takes them."""
    if not norms:
        return {}
    epsilons = {norm.options["eps"] for norm in norms}
    weights = [norm.operands["weight"] for norm in norms]
    fit = all(weight_fits(w, n.node) for w, n in zip(weights, norms, strict=True))
    if len(norms) != 2 or len(epsilons) != 1 or not fit or not has_kernel(capabilities, 2 + others):
        return None
    return {**dict(zip(NORMS, weights, strict=True)), "eps": epsilons.pop()}
