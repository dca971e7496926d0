"""Paged attention of tokens that share no keys: lanes of a subgroup read a key together."""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import F16, F32, DType
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Graph, OpNode
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels.gpu.subgroups import has_eight_lanes
from wgpu_backend.ops.attention.paged import Scores, paged_attention, paged_attention_splits
from wgpu_backend.ops.attention.paged_kernels import Rows, count_rows
from wgpu_backend.ops.attention.rope_attention import has_bindings, more_bindings
from wgpu_backend.ops.op import find

FOLDER = "kernels/gpu"
CLUSTER = 8  # lanes of a subgroup that read a key together
CLUSTER_SUMS = 16  # vectors of results that each of them holds, and of queries
THREADS = 64


def attend(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Attend by clusters of lanes; None where tokens share keys, or subgroups are too small."""
    rows = count_rows(launch)
    if not has_eight_lanes(capabilities) or rows.tokens > rows.sequences:
        return None
    scores = launch.attributes
    f16 = isinstance(scores, Scores) and scores.f16
    return _clusters(launch, rows, launch.count("v_vec4s"), f16=f16)


def attend_prepared(launch: Launch, capabilities: Capabilities) -> Launch | None:
    """Attend after norms, rotation and cache write; None where buffers are too few."""
    if not has_bindings(capabilities, more_bindings(launch)):
        return None
    found = attend(launch, capabilities)
    return found and _with_prologue(found)


@paged_attention.fuses("paged_attention", exact=False)
@paged_attention_splits.fuses("paged_attention_splits", exact=False)
def in_f16(node: OpNode, graph: Graph) -> Node | None:
    """Multiply pairs of f16 in the attention of a token, if rounding is allowed."""
    scores: Scores = node.call.kwargs["scores"]
    able = has_eight_lanes(graph.capabilities) and graph.capabilities.f16
    narrow = all(node.operands[n].spec.dtype != F32 for n in "kv")
    rows = count_rows(node.launch)
    if scores.f16 or not able or not narrow or rows.tokens > rows.sequences:
        return None
    kwargs = {**node.call.kwargs, "scores": replace(scores, f16=True)}
    return graph.call(find(node.op), *node.call.args, **kwargs)


def _with_prologue(launch: Launch) -> Launch:
    """Return a launch that rotates queries in registers, as every split needs them."""
    name = str(launch.choices["prologue"]).rpartition("/")[2]
    prologue = f"{FOLDER}/prologue/{name}"
    return replace(launch, choices={**launch.choices, "prologue": prologue})


def _clusters(launch: Launch, rows: Rows, v_vec4s: int, *, f16: bool) -> Launch | None:
    k_lane, v_lane = (-(-vec4s // CLUSTER) for vec4s in (launch.count("k_vec4s"), v_vec4s))
    most = CLUSTER_SUMS // max(k_lane, v_lane)
    if not most:
        return None  # a query alone would leave no registers
    shared = "SHARED" in launch.choices
    step = -(-rows.group // -(-rows.group // most))
    choices: dict[str, str | int] = {
        "ROWS": step,
        "K_VEC4S": k_lane,
        "V_VEC4S": v_lane,
        "K_EVEN": k_lane * CLUSTER == launch.count("k_vec4s"),
        "V_EVEN": v_lane * CLUSTER == v_vec4s and not shared,
        "BLOCK": launch.count("block"),
        "WG": THREADS,
        "KEYS": _keys(launch, f16=f16),
        "LAST_SLOT": _last_slot(launch),
    }
    return replace(
        launch,
        shader=f"{FOLDER}/attention_token",
        groups=(
            launch.count("kv_heads"),
            max(rows.tokens * -(-rows.group // step), 1),
            launch.count("splits"),
        ),
        params={**launch.params, "step": step},
        choices={**launch.choices, **choices, **_arithmetic(launch, f16=f16)},
    )


def _last_slot(launch: Launch) -> int:
    """Return the number of the last head, of a key or a value, that could be within 4 GiB."""
    kv_heads = launch.count("kv_heads")
    rows = (launch.operands[name].spec for name in "kv" if name in launch.operands)
    nbytes = max(Spec.dense((spec.shape[-1],), spec.dtype).nbytes // kv_heads for spec in rows)
    return (1 << 32) // max(nbytes, 1) - 1


def _keys(launch: Launch, *, f16: bool) -> int:
    """Return how many positions a cluster takes at once: as many as fit into registers."""
    return 8 if f16 and all(launch.operands[n].spec.dtype == F16 for n in "kv") else 4


def _arithmetic(launch: Launch, *, f16: bool) -> dict[str, str]:
    """Return the choices of how keys and values are read and summed."""
    chosen = {name: str(launch.choices[name]) for name in "kv"}
    found = {
        name: _cache(path, launch.operands[name].spec.dtype, f16=f16)
        for name, path in chosen.items()
    }
    return {**found, "sums": f"{FOLDER}/lib/sums_{'f16' if f16 else 'f32'}"}


def _cache(path: str, dtype: DType, *, f16: bool) -> str:
    """Return the module that reads a cache, given the portable one; a state is written, too.

    Values that are columns of keys have no module of their own.
    """
    if path.startswith("="):
        return path
    written = path.startswith("lib/attention/cache_")
    if dtype.quantised and not written:
        return f"{FOLDER}/lib/cache_{dtype}"
    if dtype == F16 and f16:
        return f"{FOLDER}/lib/cache_f16{'_written' if written else ''}"
    return path
