"""Scans with a matrix of states per head: gated_delta, gated_linear, wkv7, selective_scan.

They go token by token. `wgpu_backend.ops.recurrent.runs` defines states and runs. Decays are given
as logarithms of the factors. Operands may have any strides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node, ParamValue
from wgpu_backend.graph.spec import Shape, Spec, broadcast_strides
from wgpu_backend.ops.check import (
    FLOATS,
    ceil_div,
    grid_for,
    pad_to_4d,
    require,
    require_dtype,
    require_rank,
)
from wgpu_backend.ops.elementwise.activation import sigmoid_reference
from wgpu_backend.ops.op import op
from wgpu_backend.ops.recurrent.runs import require_runs, require_state
from wgpu_backend.ops.recurrent.runs_reference import scan_runs_reference
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.shape.views import make_view

# States of a column.
MAX_KEYS = 512
THREADS = 128
# Vectors of four states that suit the registers of a thread.
_OWN_VEC4S = 8


@op(dense=("runs",), trusted=True)
def gated_delta(
    q: Node,
    k: Node,
    v: Node,
    decay: Node,
    beta: Node,
    state: Node,
    runs: Node,
    rate: Node | None = None,
    bias: Node | None = None,
    *,
    scale: float = 1.0,
    tiled: bool = False,
    unit: float | None = None,
    logits: bool = False,
) -> Launch:
    """Apply the delta rule ``S = exp(decay) S``, ``S += k beta (v - k S)``, ``y = scale q S``.

    Source: Yang, Kautz & Hatamizadeh 2024, "Gated Delta Networks", eq. 10; with a decay for each
    channel Kimi Team 2025, "Kimi Linear", eq. 1.

    Parameters
    ----------
    q, k : (tokens, key_heads, keys), f32, f16 or bf16
        `key_heads` divides `heads`. `keys` is 1 to 512.
    v : (tokens, heads, values)
    decay : (tokens, heads, keys), or (tokens, heads, 1) where all states of a head decay alike
    beta : (tokens, heads), or (tokens, groups, heads / groups)
    state : (slots, heads, keys, values), f32
        Written in place.
    runs : (sequences, 4), i32
        See `wgpu_backend.ops.recurrent.runs`.
    rate, bias : (heads, keys) or (heads, 1), or None
        With both decays are ``rate * softplus(decay + bias)``; `q`, `k` and `v` are parts of one
        tensor then.
    scale : float
        Factor of queries.
    tiled : bool
        Whether keys are dealt to heads in turn; otherwise neighbours share one.
    unit : float or None
        Queries and keys are divided by their lengths, the root of the sum of squares plus this.
    logits : bool
        Whether betas are the sigmoids of what is given.

    Returns
    -------
    (tokens, heads, values), f32.

    Raises
    ------
    ShapeError
        Shapes do not fit each other, or there are a rate and a bias, and several tensors.
    """
    params, choices = _key_params("gated_delta", q, k, v, decay)
    params |= {"key_heads": k.spec.shape[1]} | ({"group": 1} if tiled else {})
    beta = _by_groups(beta, v.spec.shape[:2])
    operands = {"q": q, "k": k, "v": v, "decay": decay, "beta": beta}
    params |= {"scale": scale, "eps": unit or 0.0, "each": beta.spec.shape[2]}
    choices |= {"UNIT": unit is not None, "LOGITS": logits}
    rows = k.spec.shape[2]
    if rate is None or bias is None:
        params |= dict.fromkeys(("rate_offset", "bias_offset"), 0)
        params |= dict.fromkeys(("rate_strides", "bias_strides"), (0, 0, 0, 0))
    else:
        operands |= {"rate": rate, "bias": bias}
        params |= _step_strides(operands, (v.spec.shape[1], rows))
        # q, k and v share a binding: with a rate and a bias the kernel would bind more than eight
        # buffers.
        choices |= {"STEPS": True, "k": "=q", "v": "=q"}
        choices |= dict.fromkeys(("rate", "bias"), "formats/load/f32")
    return _launch("gated_delta", operands, state, runs, rows, params, choices, staged=3)


@gated_delta.reference
def gated_delta_reference(
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    beta: Array,
    state: Array,
    runs: Array,
    rate: Array | None = None,
    bias: Array | None = None,
    *,
    scale: float = 1.0,
    tiled: bool = False,
    unit: float | None = None,
    logits: bool = False,
) -> Array:
    """Apply the gated delta rule."""
    heads, beta = v.shape[1], beta.reshape(len(v), -1)
    if unit is not None:
        # As transformers' Qwen3-Next: eps is added to the sum of squares.
        q, k = (a / np.sqrt(np.sum(a * a, -1, keepdims=True) + np.float32(unit)) for a in (q, k))
    if logits:
        beta = sigmoid_reference(beta)
    if rate is not None and bias is not None:
        # A softplus is a step's length, as in Mamba; rates are negative.
        decay = rate * np.logaddexp(decay + bias, np.float32(0))
    q = q * np.float32(scale)
    if tiled:
        # Keys repeat as a whole: head h has key h % groups, not h // (heads / groups).
        q, k = (np.tile(a, (1, heads // a.shape[1], 1)) for a in (q, k))
    else:
        q, k = (_for_heads(a, heads) for a in (q, k))
    factors = np.exp(decay)

    def step(token: int, now: Array) -> tuple[Array, Array]:
        now = now * factors[token][..., None]
        # The delta rule writes what the state lacks of the value of this key.
        change = beta[token][:, None] * (v[token] - _read(now, k[token]))
        now += k[token][..., None] * change[:, None]
        return _read(now, q[token]), now

    return scan_runs_reference(state, runs, _zeros(v), step)


def _step_strides(operands: Mapping[str, Node], shape: Shape) -> dict[str, ParamValue]:
    """Return the strides of `rate` and `bias`."""
    parts = [operands[name] for name in "qkv"]
    require(
        len({(x.storage, x.spec.dtype) for x in parts}) == 1,
        ShapeError,
        f"gated_delta: q {parts[0].spec.shape}, k and v lie in several tensors, with a rate and a "
        "bias it needs one; give decays",
    )
    params: dict[str, ParamValue] = {}
    for name in ("rate", "bias"):
        spec = operands[name].spec
        require_dtype("gated_delta", name, operands[name], (F32,))
        require(
            spec.shape in (shape, (shape[0], 1)),
            ShapeError,
            f"gated_delta: {name} is {spec.shape}, needs {shape} or {(shape[0], 1)}",
        )
        params[f"{name}_strides"] = pad_to_4d(broadcast_strides(spec, shape), 0)
    return params


def _by_groups(beta: Node, shape: Shape) -> Node:
    """View betas of (tokens, heads) as (tokens, groups, heads of each)."""
    require_dtype("gated_delta", "beta", beta, FLOATS)
    spec, tokens = beta.spec, shape[0]
    if len(spec.shape) == 3 and spec.shape[0] == tokens and math.prod(spec.shape[1:]) == shape[1]:
        return beta
    _require_shape("gated_delta", "beta", beta, shape)
    return make_view(beta, Spec((*shape, 1), spec.dtype, (*spec.strides, 0), spec.offset))


@op(dense=("runs",), trusted=True)
def gated_linear(
    q: Node,
    k: Node,
    v: Node,
    decay: Node,
    state: Node,
    runs: Node,
    bonus: Node | None = None,
    *,
    scale: float = 1.0,
) -> Launch:
    """Apply gated linear attention: ``S = exp(decay) S + k v``, ``y = scale q S``.

    Source: Yang et al. 2023, "Gated Linear Attention Transformers", eq. 3; with a bonus Peng et
    al. 2024, "Eagle and Finch", §4.2 (RWKV-6), where ``y = scale q (S + bonus k v)`` of the S
    before the token.

    Parameters
    ----------
    q, k, v, decay, state, runs, scale
        As for `gated_delta`; neighbours share keys.
    bonus : (heads, keys) or None
        Weight of a token's own key and value.

    Returns
    -------
    (tokens, heads, values), f32.

    Raises
    ------
    ShapeError
        Shapes do not fit each other.
    """
    params, choices = _key_params("gated_linear", q, k, v, decay)
    rows = k.spec.shape[2]
    if bonus is not None:
        require_dtype("gated_linear", "bonus", bonus, FLOATS)
        _require_shape("gated_linear", "bonus", bonus, (v.spec.shape[1], rows))
    operands = {"q": q, "k": k, "v": v, "decay": decay, "bonus": decay if bonus is None else bonus}
    params |= {"scale": scale}
    choices |= {"BONUS": bonus is not None}
    return _launch("gated_linear", operands, state, runs, rows, params, choices, staged=3)


@gated_linear.reference
def gated_linear_reference(
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    state: Array,
    runs: Array,
    bonus: Array | None = None,
    *,
    scale: float = 1.0,
) -> Array:
    """Apply gated linear attention, or that of RWKV-6 with a bonus."""
    q, k = (_for_heads(a, v.shape[1]) for a in (q * np.float32(scale), k))
    factors = np.exp(decay)

    def step(token: int, now: Array) -> tuple[Array, Array]:
        added = k[token][..., None] * v[token][:, None]
        after = now * factors[token][..., None] + added
        # RWKV-6 reads the state before a token, and adds the token with a bonus.
        seen = after if bonus is None else now + bonus[..., None] * added
        return _read(seen, q[token]), after

    return scan_runs_reference(state, runs, _zeros(v), step)


@op(dense=("runs",), trusted=True)
def wkv7(r: Node, k: Node, v: Node, decay: Node, delta: Node, state: Node, runs: Node) -> Launch:
    """Apply the generalised delta rule: ``S = exp(decay) S + b (a S) + k v``, ``y = r S``.

    Source: Peng et al. 2025, "RWKV-7 Goose", eq. 16-17, with S transposed.

    Parameters
    ----------
    r, k : (tokens, heads, keys)
        f32, f16 or bf16.
    v : (tokens, heads, values)
    decay : (tokens, heads, keys) or (tokens, heads, 1)
    delta : (2, tokens, heads, keys)
        a and b.
    state, runs
        As for `gated_delta`.

    Returns
    -------
    (tokens, heads, values), f32.

    Raises
    ------
    ShapeError
        Shapes do not fit each other.
    """
    params, choices = _key_params("wkv7", r, k, v, decay)
    tokens, heads, rows = v.spec.shape[0], v.spec.shape[1], k.spec.shape[2]
    require_dtype("wkv7", "delta", delta, FLOATS)
    _require_shape("wkv7", "k", k, (tokens, heads, rows))
    _require_shape("wkv7", "delta", delta, (2, tokens, heads, rows))
    operands = {"r": r, "k": k, "v": v, "decay": decay, "delta": delta}
    return _launch("wkv7", operands, state, runs, rows, params, choices, staged=5)


@wkv7.reference
def wkv7_reference(
    r: Array, k: Array, v: Array, decay: Array, delta: Array, state: Array, runs: Array
) -> Array:
    """Apply the generalised delta rule."""
    factors, (a, b) = np.exp(decay), delta

    def step(token: int, now: Array) -> tuple[Array, Array]:
        taken = b[token][..., None] * _read(now, a[token])[:, None]
        now = now * factors[token][..., None] + taken + k[token][..., None] * v[token][:, None]
        return _read(now, r[token]), now

    return scan_runs_reference(state, runs, _zeros(v), step)


@op(dense=("runs",), trusted=True)
def selective_scan(x: Node, dt: Node, a: Node, b: Node, c: Node, state: Node, runs: Node) -> Launch:
    """Scan a state space model: ``S = exp(dt a) S + b dt x``, ``y = c S``; dt is a softplus.

    Source: Gu & Dao 2023, "Mamba", alg. 2; Dao & Gu 2024, "Transformers are SSMs", §6.

    Parameters
    ----------
    x : (tokens, heads, values), f32, f16 or bf16
        Mamba has one head of all its channels, Mamba 2 several.
    dt : (tokens, heads, values), or (tokens, heads, 1) where a head has one
        Widths of steps; their softplus is taken.
    a : (heads, values, states), or (heads, 1, 1) where a head's states decay alike
    b, c : (tokens, groups, states)
        `groups` divides `heads`; neighbours share one.
    state : (slots, heads, states, values), f32
        Written in place; `states` is 1 to 512.
    runs : (sequences, 4), i32
        See `wgpu_backend.ops.recurrent.runs`.

    Returns
    -------
    (tokens, heads, values), f32.

    Raises
    ------
    ShapeError
        Shapes do not fit each other.
    """
    operands = {"x": x, "dt": dt, "a": a, "b": b, "c": c}
    ranks = dict.fromkeys(operands, 3)
    (tokens, heads, values), *_ = _check_ranks("selective_scan", operands, ranks)
    groups, states = b.spec.shape[1:]
    for name in ("b", "c"):
        _require_shape("selective_scan", name, operands[name], (tokens, groups, states))
    # Mamba 1 has a rate for each state, Mamba 2 one for each head.
    own = a.spec.shape != (heads, 1, 1)
    choices = {"OWN_DECAY": own}
    params = {
        "group": _heads_per_group("selective_scan", heads, groups),
        "dt_strides": _repeat_strides("selective_scan", "dt", dt, (tokens, heads, values)),
        "a_strides": _repeat_strides("selective_scan", "a", a, (heads, values, states)),
    }
    return _launch("selective_scan", operands, state, runs, states, params, choices, staged=2)


@selective_scan.reference
def selective_scan_reference(
    x: Array, dt: Array, a: Array, b: Array, c: Array, state: Array, runs: Array
) -> Array:
    """Scan a state space model."""
    b, c = (_for_heads(m, x.shape[1]) for m in (b, c))
    steps, rates = np.logaddexp(dt, np.float32(0)), a.swapaxes(1, 2)

    def step(token: int, now: Array) -> tuple[Array, Array]:
        decayed = now * np.exp(steps[token][:, None] * rates)
        now = decayed + b[token][..., None] * (x[token] * steps[token])[:, None]
        return _read(now, c[token]), now

    return scan_runs_reference(state, runs, _zeros(x), step)


def _key_params(
    name: str, q: Node, k: Node, v: Node, decay: Node
) -> tuple[dict[str, ParamValue], dict[str, bool | str]]:
    """Return the parameters and choices of keys and decays, which heads may share."""
    (tokens, heads, _), _, shape = _check_ranks(
        name, {"v": v, "q": q, "k": k}, dict.fromkeys("vqk", 3)
    )
    for operand, node in (("q", q), ("k", k)):
        _require_shape(name, operand, node, (tokens, *shape[1:]))
    params: dict[str, ParamValue] = {
        "group": _heads_per_group(name, heads, shape[1]),
        "decay_strides": _repeat_strides(name, "decay", decay, (tokens, heads, shape[2])),
    }
    return params, {"SHARED_DECAY": decay.spec.shape[-1] == 1}


def _check_ranks(name: str, operands: Mapping[str, Node], ranks: Mapping[str, int]) -> list[Shape]:
    """Check the ranks of operands, and return their shapes."""
    for operand, rank in ranks.items():
        require_rank(name, operand, operands[operand], rank, rank)
        require_dtype(name, operand, operands[operand], FLOATS)
    return [operands[operand].spec.shape for operand in ranks]


def _require_shape(name: str, operand: str, node: Node, shape: Shape) -> None:
    require(
        node.spec.shape == shape,
        ShapeError,
        f"{name}: {operand} is {node.spec.shape}, needs {shape}",
    )


def _heads_per_group(name: str, heads: int, groups: int) -> int:
    """Return how many heads share a group's keys."""
    require(
        groups > 0 and heads % groups == 0,
        ShapeError,
        f"{name}: {heads} heads, not a multiple of {groups} groups of keys",
    )
    return heads // groups


def _repeat_strides(name: str, operand: str, node: Node, shape: Shape) -> tuple[int, int, int, int]:
    """Return the strides of an operand whose extents of 1 repeat over `shape`."""
    require_rank(name, operand, node, 3, 3)
    require_dtype(name, operand, node, FLOATS)
    have = node.spec.shape
    require(
        all(n in (1, m) for n, m in zip(have, shape, strict=True)),
        ShapeError,
        f"{name}: {operand} is {have}, needs {shape}, or 1 in the place of an extent",
    )
    return pad_to_4d(broadcast_strides(node.spec, shape), 0)


def _launch(
    name: str,
    operands: Mapping[str, Node],
    state: Node,
    runs: Node,
    rows: int,
    params: Mapping[str, ParamValue],
    choices: Mapping[str, bool | str],
    *,
    staged: int,
) -> Launch:
    """Return a scan's launch; a token brings `staged` vectors of `rows` values to every column."""
    tokens, heads, cols = operands["x" if "x" in operands else "v"].spec.shape
    require(
        0 < rows <= MAX_KEYS,
        ShapeError,
        f"{name}: columns have {rows} states, needs 1 to {MAX_KEYS}",
    )
    sequences = require_runs(name, runs)
    slots = require_state(name, state, (heads, rows, cols))
    sizes = _sizes(rows, staged)
    column_tiles = ceil_div(cols, sizes["COLS"])
    strides = {f"{n}_strides": pad_to_4d(node.spec.strides, 0) for n, node in operands.items()}
    counts = {
        "groups": sequences * heads * column_tiles,
        "column_tiles": column_tiles,
        "sequences": sequences,
        "tokens": tokens,
        "heads": heads,
        "rows": rows,
        "cols": cols,
        "slots": slots,
    }
    return Launch(
        Spec.dense((tokens, heads, cols), F32),
        {**operands, "state": state, "runs": runs},
        groups=grid_for(sequences * heads * column_tiles),
        params={**strides, **counts, **params},
        choices={**sizes, **choices},
        writes=("state",),
        work=8 * tokens * heads * cols * rows,
    )


def _sizes(rows: int, staged: int) -> dict[str, int]:
    """Return the thread and vector counts for columns of `rows` states.

    Threads share a column until each has few enough states; the shortest columns have one thread
    each.
    """
    parts = 1
    # Powers of two divide the threads of a work group.
    while parts * _OWN_VEC4S * 4 < rows:
        parts *= 2
    vec4s = ceil_div(ceil_div(rows, 4), parts)
    length = parts * vec4s
    return {
        "WG": THREADS,
        "COLS": THREADS // parts,
        "PARTS": parts,
        "VEC4S": vec4s,
        "LENGTH": length,
        "STAGED": staged,
        "WORK": staged * length,
        "FETCHES": ceil_div(staged * length, THREADS),
    }


def _for_heads(vectors: Array, heads: int) -> Array:
    """Repeat (tokens, groups, keys) for the heads of each group."""
    return np.repeat(vectors, heads // vectors.shape[1], axis=1)


def _read(state: Array, query: Array) -> Array:
    return np.einsum("hkv,hk->hv", state, query)


def _zeros(v: Array) -> Array:
    return np.zeros(v.shape, np.float32)
