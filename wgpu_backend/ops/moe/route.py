"""One op for the router of a mixture of experts: scores, the choice, and the weights.

Models write it with simple ops, whichever their recipe is::

    scores = logits.softmax()                                       or sigmoid, or none
    ids = scores.top_k(k)                                           or of scores plus a bias,
                                                                    or of those of_best_groups
    weights = scores.reshape(tokens, experts, 1).rows(ids)          or take_along_axis
    weights = weights.reshape(tokens, k)
    weights = weights / weights.sum_rows()                          or softmax, or neither
    weights = weights.scale(factor=2.5)                             or not

A rule puts `route` in the place of the gathered weights, and others take up what follows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from wgpu_backend.dtypes import F32, I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ops.check import FLOATS, grid_for, require, require_dtype, require_rank, row_count
from wgpu_backend.ops.elementwise.activation import sigmoid_reference
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reduce.norm import softmax_reference
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.sampling.sorting import sort_rows_reference

# Arrays of the shaders have these sizes.
MOST_EXPERTS, MOST_CHOSEN, MOST_GROUPS = 512, 32, 32
# Forms of scores and of weights; the shaders have the same numbers.
FORMS = {"": 0, "softmax": 1, "sigmoid": 2, "sum": 3}
SCORES, WEIGHTS = ("", "softmax", "sigmoid"), ("", "softmax", "sum")


@op(dense=("x", "bias", "scales"), trusted=True)
def route(
    x: Node,
    ids: Node,
    bias: Node | None = None,
    scales: Node | None = None,
    *,
    scores: str = "",
    weights: str = "",
    inner: float = 1.0,
    factor: float = 1.0,
    groups: int = 1,
    groups_used: int = 1,
) -> Launch:
    """Choose the experts of each token and weigh them.

    Only fusion rules make this op. They make sure that readers of the ids run later.

    Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", §2.1; `bias` and the sigmoid
    are DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", eq. 13 to 16.

    Parameters
    ----------
    x : (..., experts), f32, f16 or bf16
        Logits; at most 512 experts.
    ids : (tokens, k) or another shape of as many values, i32, dense; written
        The experts with the `k` largest scores, as `top_k` gives them; `k` at most 32.
    bias : (experts,), f32, f16 or bf16, or None
        Added to scores for the choice, not for the weights.
    scales : (experts,) or (experts, 1), f32, f16 or bf16, or None
        Factors of experts' weights.
    scores : str
        What scores are of logits: ``softmax``, ``sigmoid``, or nothing for themselves.
    weights : str
        What weights are of chosen scores: ``sum`` divides by their sum, ``softmax``, or nothing.
    inner, factor : float
        Of the logits, and of the weights.
    groups, groups_used : int
        See `of_best_groups`; all are used by default.

    Returns
    -------
    Weights in the shape of `ids`, f32.

    Raises
    ------
    ShapeError
        There are more experts or chosen ones, a form is unknown, or shapes do not go together.
    """
    require(
        scores in SCORES and weights in WEIGHTS,
        ShapeError,
        f"route: scores {scores!r} and weights {weights!r}, needs one of {SCORES} and of {WEIGHTS}",
    )
    tokens, experts, k = _choice(x, ids)
    _require_each("bias", bias, (experts,))
    _require_each("scales", scales, (experts,), (experts, 1))
    _require_groups("route", experts, groups, groups_used)
    launch = Launch(
        Spec.dense(ids.spec.shape, F32),
        {"x": x, "ids": ids, "bias": x if bias is None else bias},
        groups=grid_for(tokens),
        params={
            "rows": tokens,
            "experts": experts,
            "k": k,
            "inner": inner,
            "factor": factor,
            "scales_offset": 0,
        },
        choices={
            "SCORES": FORMS[scores],
            "WEIGHTS": FORMS[weights],
            "BIASED": bias is not None,
            "GROUPS": groups,
            "GROUPS_USED": groups_used,
        },
        writes=("ids",),
        work=4 * x.spec.nbytes,
    )
    return launch if scales is None else _with_scales(launch, scales)


@route.reference
def route_reference(
    x: Array,
    ids: Array,
    bias: Array | None = None,
    scales: Array | None = None,
    *,
    scores: str = "",
    weights: str = "",
    inner: float = 1.0,
    factor: float = 1.0,
    groups: int = 1,
    groups_used: int = 1,
) -> Array:
    """Return the weights of the experts of the largest scores, and write their ids."""
    logits = x.reshape(-1, x.shape[-1]) * np.float32(inner)
    given = {"softmax": softmax_reference, "sigmoid": sigmoid_reference}.get(scores, np.asarray)(
        logits
    )
    ranked = given if bias is None else given + bias
    ranked = of_best_groups_reference(ranked, groups=groups, used=groups_used)
    best = sort_rows_reference(ranked.astype(np.float32), descending=True)[
        :, : ids.size // len(given)
    ]
    ids[...] = best.reshape(ids.shape)
    # The bias balances the choice and is no part of the weights: DeepSeek-V3, §2.1.2.
    found = np.take_along_axis(given, best, axis=1)
    if weights == "sum":
        found = found / np.sum(found, axis=1, keepdims=True)
    if weights == "softmax":
        found = softmax_reference(found)
    if scales is not None:
        found = found * scales.reshape(-1)[best]
    return (found * np.float32(factor)).reshape(ids.shape)


def _with_scales(launch: Launch, scales: Node) -> Launch:
    return replace(
        launch,
        operands={**launch.operands, "scales": scales},
        params={**launch.params, "scales_offset": scales.spec.offset},
        choices={
            **launch.choices,
            "SCALED": True,
            "scales": f"formats/load/{scales.spec.dtype.name}",
        },
    )


def _choice(x: Node, ids: Node) -> tuple[int, int, int]:
    """Return the number of tokens, of experts, and of experts per token."""
    require_rank("route", "x", x, 1)
    require_dtype("route", "x", x, FLOATS)
    require_dtype("route", "ids", ids, (I32,))
    tokens, experts = row_count(x.spec), x.spec.shape[-1]
    k = ids.spec.size // max(tokens, 1)
    require(
        ids.spec.is_dense and k * tokens == ids.spec.size,
        ShapeError,
        f"route: ids is {ids.spec.shape} of strides {ids.spec.strides}, needs whole rows for each "
        f"of {tokens} tokens",
    )
    require(
        0 < k <= min(experts, MOST_CHOSEN) and experts <= MOST_EXPERTS,
        ShapeError,
        f"route: {k} of {experts} experts, needs at most {MOST_CHOSEN} of {MOST_EXPERTS}",
    )
    return tokens, experts, k


def _require_each(name: str, vector: Node | None, *shapes: Shape) -> None:
    """Check that an operand has one value per expert, in an allowed shape."""
    if vector is None:
        return
    require_dtype("route", name, vector, FLOATS)
    require(
        vector.spec.shape in shapes,
        ShapeError,
        f"route: {name} is {vector.spec.shape}, x has {shapes[0][0]} experts",
    )


def _require_groups(name: str, experts: int, groups: int, used: int) -> None:
    require(
        0 < used <= groups <= MOST_GROUPS and experts % groups == 0,
        ShapeError,
        f"{name}: {used} of {groups} groups of {experts} experts, needs groups of one size, "
        f"{MOST_GROUPS} at most, and no more of them",
    )


@op(dense=("x",), trusted=True)
def of_best_groups(x: Node, *, groups: int, used: int) -> Launch:
    """Return the scores of experts in a token's best groups, negative infinity for others.

    A group's score is the sum of its two best. Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical
    Report", §2.1.2.

    Parameters
    ----------
    x : (tokens, experts)
        f32, f16 or bf16.
    groups : int
        Neighbouring experts are one, all of one size; at most 32.
    used : int
        How many of the groups a token may use.

    Returns
    -------
    Like `x`, f32; negative infinity in groups that are not used.

    Raises
    ------
    ShapeError
        The experts are no whole groups, or there are more than 32 of these.
    """
    require_rank("of_best_groups", "x", x, 2, 2)
    require_dtype("of_best_groups", "x", x, FLOATS)
    tokens, experts = x.spec.shape
    _require_groups("of_best_groups", experts, groups, used)
    return Launch(
        Spec.dense(x.spec.shape, F32),
        {"x": x},
        groups=grid_for(tokens),
        params={"rows": tokens, "experts": experts},
        choices={"GROUPS": groups, "GROUPS_USED": used},
        work=4 * x.spec.nbytes,
    )


@of_best_groups.reference
def of_best_groups_reference(x: Array, *, groups: int, used: int) -> Array:
    """Return the scores, negative infinity for groups that are not among the best."""
    each = x.shape[1] // groups
    grouped = x.reshape(-1, each).astype(np.float32)
    # DeepSeek-V3 ranks a group by the sum of its two best experts.
    two = sort_rows_reference(grouped, descending=True)[:, :2]
    # Infinities give NaN, as on devices.
    with np.errstate(invalid="ignore"):
        sums = np.take_along_axis(grouped, two, axis=1).sum(axis=1, dtype=np.float32)
    best = sort_rows_reference(sums.reshape(-1, groups), descending=True)[:, :used]
    shut = np.ones((len(x), groups, 1), np.bool)
    np.put_along_axis(shut[..., 0], best, np.bool(False), axis=1)
    kept = np.where(shut, np.float32(-np.inf), grouped.reshape(-1, groups, each))
    return kept.reshape(x.shape)


@route.fuses("rows", "take_along_axis")
def fuse_chosen_scores(node: OpNode, graph: Graph) -> Node | None:
    """Fuse the scores of the chosen experts with their choice, by score or score plus bias."""
    ids = node.operands["ids"]
    choice = graph.producer(ids, "top_k_of_parts")
    scores = node.operands.get("weights" if node.op == "rows" else "x")
    if choice is None or scores is None or not _gathers_one(node, scores.spec, choice):
        return None
    ranked, bias, groups = choice.operands["x"], None, dict[str, int]()
    grouped = graph.producer(ranked, "of_best_groups")
    if grouped is not None and _whole(ranked):
        ranked, how = grouped.operands["x"], grouped.call.kwargs
        groups = {"groups": how["groups"], "groups_used": how["used"]}
    if ranked.storage is not scores.storage:
        ranked, bias = _find_bias(graph.producer(ranked, "add"), scores)
    if ranked is None or not (_whole(scores) and _whole(ranked)):
        return None
    form = graph.producer(scores, "softmax", "sigmoid")
    shape = choice.operands["x"].spec.shape
    x = form.operands["x"] if form else graph.view(scores, Spec.dense(shape, F32))
    # A softmax of other rows, such as groups of experts.
    if x.spec.shape[-1:] != shape[-1:]:
        return None
    # `route` writes the ids later than the choice did.
    if not graph.can_defer_write(choice, choice.node):
        return None
    written = Node(Spec.dense(node.spec.shape, I32), choice.node.storage)
    return graph.call(route, x, written, bias, scores=form.op if form else "", **groups)


def _gathers_one(node: OpNode, scores: Spec, choice: OpNode) -> bool:
    """Return whether an op gathers from each row the values of its choice, in order."""
    tokens, k = choice.spec.shape
    cols, params = choice.operands["x"].spec.shape[-1], node.launch.params
    # A choice from several parts is followed by another one, which this rule would miss.
    one = choice.launch.count("parts") == 1 and tokens > 0
    if not (one and 0 < k <= min(cols, MOST_CHOSEN) and cols <= MOST_EXPERTS):
        return False
    # `rows` gathers from one matrix, in which those of all tokens lie below each other.
    if node.op == "rows":
        column = scores.shape == (tokens * cols, 1)
        return column and params.get("rows") == cols and node.spec.shape == (tokens, k, 1)
    along = params["inner"] == 1 and node.spec.shape == (tokens, k)
    return along and scores.shape == (tokens, cols)


def _find_bias(total: OpNode | None, scores: Node) -> tuple[Node, Node] | tuple[None, None]:
    """Return the scores, and the bias added to them for the choice."""
    if total is None:
        return None, None
    for own, other in (("a", "b"), ("b", "a")):
        ranked, bias = total.operands[own], total.operands[other]
        if ranked.storage is scores.storage and bias.spec.shape == total.spec.shape[-1:]:
            return (ranked, bias) if bias.spec.dtype in FLOATS else (None, None)
    return None, None


def _whole(x: Node) -> bool:
    return x.spec.is_dense and not x.spec.offset and x.spec.dtype == F32


def _extend(
    found: OpNode,
    graph: Graph,
    node: OpNode,
    *others: OpNode,
    **how: Any,  # noqa: ANN401
) -> Node | None:
    """Extend a route by the op `node` on its weights."""
    ids = found.operands["ids"]
    if not graph.can_defer_write(found, ids, node, *others):
        return None
    written = Node(Spec.dense(node.spec.shape, I32), ids.storage)
    return _again(found, graph, written, **how)


def _again(found: OpNode, graph: Graph, ids: Node, **how: Any) -> Node:  # noqa: ANN401
    """Rebuild a route with other arguments."""
    bias = found.operands["bias"] if found.launch.choices["BIASED"] else None
    given = {"x": found.operands["x"], "scales": found.operands.get("scales")}
    return graph.call(route, **{**given, **found.options, **how, "ids": ids, "bias": bias})


def _plain(found: OpNode) -> bool:
    """Return whether a route returns scores as they are."""
    return not found.call.kwargs.get("weights") and not _is_scaled(found)


def _is_scaled(found: OpNode) -> bool:
    return found.call.kwargs.get("factor", 1.0) != 1.0 or "scales" in found.operands


def _matches_tokens(x: Node, found: OpNode) -> bool:
    """Return whether each row of `x` has the weights of one token of a route."""
    return x.spec.shape[-1] * row_count(found.operands["x"].spec) == found.spec.size


@route.fuses("div")
def fuse_division(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a route with the division of its weights by their sum."""
    x = node.operands["a"]
    found, total = (
        graph.producer(x, "route"),
        graph.single_use_producer(node.operands["b"], "reduce"),
    )
    if found is None or total is None or not _plain(found) or node.spec.shape != x.spec.shape:
        return None
    how, summed = total.call.kwargs, total.operands["x"]
    by_rows = how["kind"] == "sum" and tuple(how["axes"]) == (len(x.spec.shape) - 1,)
    same = summed.storage is x.storage and summed.spec == x.spec
    if not (by_rows and same and how["divisor"] == 1.0 and _matches_tokens(x, found)):
        return None
    return _extend(found, graph, node, total, weights="sum")


@route.fuses("softmax")
def fuse_softmax(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a route with a softmax over its weights."""
    x = node.operands["x"]
    found = graph.single_use_producer(x, "route")
    if found is None or not _plain(found) or not _matches_tokens(x, found):
        return None
    return _extend(found, graph, node, weights="softmax")


@route.fuses("scale")
def fuse_weight_scale(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a route with a scale of its weights."""
    found = graph.single_use_producer(node.operands["x"], "route")
    if found is None or _is_scaled(found) or node.call.kwargs.get("bias", 0.0) != 0.0:
        return None
    return _extend(found, graph, node, factor=node.call.kwargs["factor"])


@route.fuses("mul")
def fuse_expert_scales(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a route with a factor of each chosen expert."""
    for own, other in (("a", "b"), ("b", "a")):
        found = graph.single_use_producer(node.operands[own], "route")
        rows = graph.single_use_producer(node.operands[other], "rows")
        if found is None or rows is None or "scales" in found.operands:
            continue
        scales, ids = rows.operands["weights"], rows.operands["ids"]
        same = ids.storage is found.operands["ids"].storage and ids.spec.is_dense
        each = scales.spec.shape == (found.operands["x"].spec.shape[-1], 1)
        if same and each and scales.spec.dtype in FLOATS and node.spec.size == found.spec.size:
            return _extend(found, graph, node, rows, scales=scales)
    return None


@route.fuses("route")
def fuse_logit_scale(node: OpNode, graph: Graph) -> Node | None:
    """Fuse a route with a scale of its logits."""
    scale = graph.producer(node.operands["x"], "scale")
    # What has no bias reads its logits in that place, too.
    if scale is None or not graph.read_by(scale.node.storage, node):
        return None
    if scale.call.kwargs.get("bias", 0.0) != 0.0:
        return None
    inner = scale.call.kwargs["factor"] * node.call.kwargs.get("inner", 1.0)
    ids = node.operands["ids"]
    return _again(node, graph, ids, x=scale.operands["x"], inner=inner)
