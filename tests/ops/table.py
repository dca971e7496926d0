"""The table of ops: operands to try each with, the types it takes, and how close results are.

`test_table.py` draws extents, values, types and layouts for every row. A new op needs a row here;
what its results mean (ties, order, NaN, formats) is tested in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.ops.operands import FLOATS, PLAIN
from tests.ops.samples import (
    WHOLE_ROWS,
    Operand,
    any_bits,
    apart,
    below,
    between,
    distinct,
    increasing,
    steps,
    well_conditioned,
    whole,
)
from wgpu_backend.dtypes import (
    BF16,
    BOOL,
    COMPLEX64,
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    Q8_0,
    U8,
    U16,
    U32,
    U64,
    DType,
)
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.op import find
from wgpu_backend.ops.random.bits import random_bits
from wgpu_backend.ops.random.draws import (
    random_gumbel,
    random_laplace,
    random_normal_key,
    random_randint,
    random_uniform,
)
from wgpu_backend.ops.reduce import arguments
from wgpu_backend.ops.sampling.masking import mask_logits

# Types that an op takes; it refuses all others.
SHORT = (I32, U32, I16, U16, I8, U8)
INTEGERS = (*SHORT, I64, U64)
NUMBERS = (*FLOATS, *INTEGERS)
ORDERED = (*NUMBERS, BOOL)
# How far results may be from the reference's: NMSE. Sums in f32 in another order keep some seven
# digits; functions of WGSL are some units in the last place off.
EXACT, ARITHMETIC, FUNCTION, SUM, LONG_SUM = 0.0, 1e-13, 1e-11, 1e-11, 1e-10
Call = Callable[..., Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An op, and how it is tried.

    Parameters
    ----------
    name : str
        As errors call it.
    call : callable
        From the operands and options to the result.
    ops : tuple of str
        Registered ops that the row tries.
    options : sequence of mapping
        One is drawn for each try.
    takes : tuple of DType
        Types of the operands without a type of their own; others are refused.
    limit : float
        Largest NMSE of results that are not rounded to halves; 0 asks for equal values.
    broadcasts : bool
        Operands of ``"..."`` may be narrower than the first.
    extents : mapping
        Numbers that a name stands for, where not all will do.
    nonfinite : bool
        NaN and infinities among the values give what they give in NumPy.
    says : tuple of str
        Names in errors, in addition to those of the row and its ops.
    """

    name: str
    operands: tuple[Operand, ...]
    call: Call
    ops: tuple[str, ...]
    options: Sequence[Mapping[str, Any]] = ({},)
    takes: tuple[DType, ...] = FLOATS
    limit: float = FUNCTION
    broadcasts: bool = False
    extents: Mapping[str, Sequence[int]] = field(default_factory=dict)
    nonfinite: bool = False
    says: tuple[str, ...] = ()


TABLE: dict[str, Row] = {}


def add(
    name: str,
    *operands: Operand,
    call: Call | None = None,
    ops: tuple[str, ...] = (),
    title: str = "",
    **how: Any,
) -> None:
    """Add a row; by default it calls the registered op of its name."""
    title = title or name
    assert title not in TABLE, f"there is a row of {title}"
    made = call or (lambda *given, **told: find(name)(*given, **told))
    TABLE[title] = Row(name=name, operands=operands, call=made, ops=ops or (name,), **how)


def method(name: str, *args: Any) -> Call:
    """A method of the first operand."""
    return lambda first, *others, **told: getattr(first, name)(*others, *args, **told)


ANY, MATRIX, CUBE = Operand("..."), Operand("rows cols"), Operand("a b c")
STEPS, APART = Operand("...", steps), Operand("...", apart)
SIGNS, TRUTH = Operand("...", whole(-1, 2)), Operand("...", whole(0, 2), BOOL)
WIDE, UNIT, ABOVE_ONE, NEAR_ONE = (
    between(-9, 9), between(-0.9, 0.9), between(1.5, 9), between(0.5, 2),
)  # fmt: skip

# Elementwise ops of one tensor.
for name in ("neg", "abs", "sign", "sqr"):
    add(name, STEPS, takes=NUMBERS, limit=ARITHMETIC, nonfinite=True)
for name in ("floor", "ceil", "trunc", "round"):
    add(name, STEPS, limit=EXACT, nonfinite=True)
for name, draw in {
    "sqrt": between(0.1, 9), "rsqrt": ABOVE_ONE, "reciprocal": apart, "exp": WIDE, "exp2": WIDE,
    "expm1": WIDE, "log": ABOVE_ONE, "log1p": ABOVE_ONE, "log2": ABOVE_ONE, "log10": ABOVE_ONE,
    "sin": WIDE, "cos": WIDE, "tan": UNIT, "asin": UNIT, "acos": UNIT, "atan": WIDE, "sinh": WIDE,
    "cosh": WIDE, "tanh": WIDE, "asinh": WIDE, "acosh": ABOVE_ONE, "atanh": UNIT, "erf": WIDE,
    "erfinv": UNIT, "sigmoid": WIDE, "softplus": WIDE, "log_sigmoid": WIDE, "silu": WIDE,
    "gelu": WIDE, "gelu_erf": WIDE, "quick_gelu": WIDE, "mish": WIDE, "softsign": WIDE,
    "selu": steps, "relu": steps, "relu6": steps, "relu_squared": steps, "hardsigmoid": steps,
    "hardswish": steps,
}.items():  # fmt: skip
    add(name, Operand("...", draw), nonfinite=True)
for name, told in {
    "elu": {"alpha": 0.7}, "celu": {"alpha": 1.3}, "leaky_relu": {"negative_slope": 0.2},
    "hard_shrink": {"lambd": 0.6}, "softshrink": {"lambd": 0.6}, "step": {"threshold": -0.4},
    "hardtanh": {"low": -0.5, "high": 2}, "scale": {"factor": -0.3, "bias": 1.7},
}.items():  # fmt: skip
    add(name, STEPS, options=(told,), nonfinite=True)
BOUNDS = [{"low": a, "high": b} for a, b in ((-1, 2), (-np.inf, 1), (0, np.inf), (1, 1))]
add("clamp", STEPS, takes=(*FLOATS, *SHORT), limit=EXACT, nonfinite=True, options=BOUNDS)
for name in ("isnan", "isinf", "isfinite", "signbit"):
    add(name, STEPS, limit=EXACT)
add("bitwise_not", STEPS, takes=(*INTEGERS, BOOL), limit=EXACT)
add("logical_not", STEPS, takes=(BOOL,), limit=EXACT)

# Elementwise ops of several.
for name in ("add", "sub", "mul", "maximum", "minimum"):
    add(name, ANY, APART, takes=NUMBERS, limit=ARITHMETIC, broadcasts=True)
for name in ("div", "atan2", "hypot", "logaddexp"):
    add(name, ANY, APART, broadcasts=True)
for name in ("swiglu", "geglu", "geglu_erf", "geglu_quick", "reglu", "prelu"):
    add(name, ANY, STEPS, broadcasts=True)
add("power", Operand("...", NEAR_ONE), Operand("...", whole(0, 4)), takes=NUMBERS, broadcasts=True)
for name in ("floor_divide", "remainder"):
    given = Operand("...", whole(1, 99)), Operand("...", whole(1, 9))
    add(name, *given, takes=NUMBERS, limit=EXACT, broadcasts=True)
for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
    add(name, SIGNS, SIGNS, takes=ORDERED, limit=EXACT, broadcasts=True)
for name in ("logical_and", "logical_or", "logical_xor"):
    add(name, ANY, ANY, takes=(BOOL,), limit=EXACT, broadcasts=True)
for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    add(name, ANY, ANY, takes=(*INTEGERS, BOOL), limit=EXACT, broadcasts=True)
for name in ("left_shift", "right_shift"):
    add(name, ANY, Operand("...", whole(0, 7)), takes=INTEGERS, limit=EXACT, broadcasts=True)
add("copysign", STEPS, APART, limit=EXACT, broadcasts=True)
add("nextafter", STEPS, APART, takes=(F32, F16), limit=EXACT, broadcasts=True)
add("where", TRUTH, STEPS, STEPS, takes=PLAIN, limit=EXACT, broadcasts=True)
add("silu_alpha_limit", ANY, ANY, options=({"alpha": 1.702, "limit": 7.0},))

# Ops that move values, whatever their bits.


def moved(shape: str) -> Operand:
    """An operand whose values are any bits."""
    return Operand(shape, any_bits)


BITS = moved("a b c")
MOVED: dict[str, Any] = {"takes": PLAIN, "limit": EXACT}
IDS = Operand("ids", below("a"), I32)
add("contiguous", BITS, call=lambda x: x.permute(2, 0, 1).contiguous(), **MOVED)
add("fresh", moved("..."), **MOVED)
add("cast", ANY, options=[{"dtype": d} for d in (F32, F16, BF16, I32)],
    takes=tuple(d for d in PLAIN if d != COMPLEX64), limit=EXACT)  # fmt: skip
add("fill", STEPS, options=({"value": 1},), **MOVED)
add("flip", BITS, options=[{"axes": axes} for axes in (None, 0, (0, -1))], **MOVED)
add("concat", BITS, moved("a d c"), options=({"axis": 1},), **MOVED)
add("stack", BITS, moved("a b d"), call=lambda x, y: x.stack(-1, y, y), ops=("concat",), **MOVED)
for name, call in {
    "pad": lambda x: x.pad(1, -1, 2),
    "pad_ext": lambda x: x.pad_ext((0, 1), (-1, 2), (3, 0)),
    "repeat": lambda x: x.repeat(1, 3),
    "roll": lambda x: x.roll((5, -1), (0, 2)),
}.items():
    add(name, BITS, call=call, ops=("window",), **MOVED)
add("tile", BITS, call=lambda x: x.tile(2, 1, 3), ops=("contiguous",), **MOVED)
add("repeat_each", BITS, call=lambda x: x.repeat_each(3, 1), ops=("contiguous",), **MOVED)
add("pad_mode", BITS, call=lambda x, mode: x.pad_mode([(1, 0), (0, 0), (2, 1)], mode),
    options=[{"mode": m} for m in ("constant", "edge", "symmetric", "wrap")], ops=("padded",),
    **MOVED)  # fmt: skip
add("tri", BITS, options=[{"kind": kind} for kind in range(4)], **MOVED)
add("tril", BITS, call=method("tril", -1), ops=("band",), **MOVED)
add("diag", moved("rows cols"), **MOVED)
add("take_axes", BITS, IDS, options=({"axis": 0},), **MOVED)
add("take_along_axis", BITS, Operand("ids b c", below("a"), I32), options=({"axis": 0},), **MOVED)
add("put_along_axis", BITS, Operand("1 b c", below("a"), I32), moved("1 b c"),
    call=method("put_along_axis", 0), ops=("put_along",), **MOVED)  # fmt: skip
add("scatter", BITS, Operand("1", below("a"), I32), moved("1 1 b c"),
    call=lambda x, ids, new: x.scatter([ids], new, [0]), ops=("put_at",), **MOVED)  # fmt: skip
add("slice_update", moved("9 b c"), moved("4 b c"), call=method("slice_update", (1, 0, 0)),
    ops=("put_window",), says=("slice",), **MOVED)  # fmt: skip
add("rows", moved("a b"), IDS, **MOVED)
add("set_rows", moved("ids 8"), Operand("ids", distinct(40), I32), limit=EXACT,
    call=lambda x, ids: x.context.zeros(40, 8, dtype=x.dtype).set_rows(x, ids), takes=PLAIN,
    extents={"ids": (1, 2, 5, 9)})  # fmt: skip
add("compact", Operand("a b", whole(0, 2), BOOL), call=method("compact", 3), ops=("compact_by",),
    limit=EXACT)  # fmt: skip
add("count_true", Operand("a b", whole(0, 2), BOOL), call=method("count_true"), ops=("reduce",),
    limit=EXACT)  # fmt: skip
MODES = [{"mode": mode} for mode in ("add", "mul", "max", "min")]
add("fold_at", Operand("a b", whole(1, 4)), IDS, Operand("ids b", whole(1, 3)),
    call=method("fold_at", 0), ops=("fold_sorted",), options=MODES, takes=ORDERED,
    extents={"ids": (1, 5, 13)})  # fmt: skip

# Reductions and scans.
AXES = [{"axes": axes, "keep_dims": keep} for axes in (None, 0, -1, (0, 2)) for keep in (0, 1)]
FOLDED = Operand("a b c", NEAR_ONE)
for name in ("sum", "prod"):
    short = {"a": (1, 2, 5), "b": (1, 3, 8), "c": (1, 5, 33)} if name == "prod" else {}
    draw = between(0.9, 1.1) if name == "prod" else NEAR_ONE
    add(name, Operand("a b c", draw), call=method(name), ops=("reduce",), options=AXES,
        takes=ORDERED, limit=SUM, extents=short)  # fmt: skip
for name in ("mean", "variance", "logsumexp"):
    add(name, FOLDED, call=method(name), ops=("reduce",), options=AXES, limit=SUM)
# Of equal values it is 0, and on a device the error of their mean, up to 6 units of 1.2e-7: over
# 33 columns, 1.7e-11.
add("stddev", FOLDED, call=method("stddev"), ops=("reduce",), options=AXES, limit=LONG_SUM)
for name in ("max", "min"):
    add(name, CUBE, call=method(name), ops=("reduce",), options=AXES, takes=NUMBERS,
        limit=EXACT)  # fmt: skip
for name in ("any", "all"):
    add(name, Operand("a b c", whole(0, 2)), call=method(name), ops=("reduce",), options=AXES,
        takes=ORDERED, limit=EXACT)  # fmt: skip
ALONG = [{"axis": axis, "exclusive": bool(e), "reverse": bool(r)}
         for axis in (0, 1, -1) for e, r in ((0, 0), (1, 0), (0, 1))]  # fmt: skip
for name, draw in {"cumsum": NEAR_ONE, "cumprod": between(0.99, 1.01)}.items():
    add(name, Operand("a b c", draw), call=method(name), ops=("scan",), options=ALONG,
        takes=ORDERED, limit=LONG_SUM)  # fmt: skip
for name in ("cummax", "cummin"):
    add(name, CUBE, call=method(name), ops=("scan",), options=ALONG, takes=ORDERED,
        limit=EXACT)  # fmt: skip
add("logcumsumexp", FOLDED, call=method("logcumsumexp"), ops=("scan",), options=ALONG,
    limit=LONG_SUM)  # fmt: skip

# Order.
for name in ("argmax", "argmin"):
    of_axis = getattr(arguments, name)
    add(name, CUBE, call=of_axis, ops=("argument",), title=f"{name} of an axis",
        options=[{"axis": a} for a in (None, 0, -1)], takes=ORDERED,
        limit=EXACT)  # fmt: skip
add("argmax", MATRIX, limit=EXACT, extents={"rows": (1, 3, 65), "cols": (1, 3, 257, 1300)})
LONG_ROWS = {"rows": (1, 3), "cols": (1, 3, 33, 257, 1025, 5000)}
for name in ("argsort", "sort"):
    add(name, MATRIX, call=method(name), ops=("sort_rows", "radix_count", "radix_scatter"),
        options=[{"descending": d} for d in (False, True)], takes=ORDERED,
        limit=EXACT, extents=LONG_ROWS)  # fmt: skip
TOP: dict[str, Any] = {"takes": ORDERED, "limit": EXACT}
add("top_k", MATRIX, call=method("top_k", 3), ops=("top_k_of_parts", "top_k_of_ids"),
    extents={"rows": (1, 3), "cols": (3, 33, 1025, 5000)}, **TOP)  # fmt: skip
add("top_k", MATRIX, call=method("top_k", 300), title="top_k of many",
    ops=("select_top_k", "sort_rows"), extents={"rows": (1, 3), "cols": (300, 1025, 9001)},
    **TOP)  # fmt: skip
add("searchsorted", Operand("n", increasing), Operand("m", steps), limit=EXACT,
    options=[{"side": side} for side in ("left", "right")], takes=ORDERED)  # fmt: skip
add("mask_logits", Operand("rows 33", views=("sliced",)), Operand("rows 2", whole(0, 99), U32),
    call=mask_logits, takes=(F32,), limit=EXACT)  # fmt: skip
add("of_best_groups", Operand("tokens 16"), options=({"groups": 4, "used": 2},), limit=EXACT)

# Norms.
ROW = Operand("rows cols", views=WHOLE_ROWS)
WEIGHT = Operand("cols", views=WHOLE_ROWS)
add("softmax", MATRIX, nonfinite=True)
add("l2_norm", MATRIX, options=({"eps": 1e-6},), nonfinite=True)
add("rms_norm", ROW, options=({"eps": 1e-5},))
add("rms_norm", ROW, WEIGHT, options=({"eps": 1e-5},), title="rms_norm of a weight")
add("layer_norm", MATRIX, options=({"eps": 1e-5},))
add("layer_norm", MATRIX, WEIGHT, WEIGHT, options=({"eps": 1e-5},), title="layer_norm of weights")
add("group_norm", Operand("n places 12"), Operand("12"), Operand("12"),
    call=lambda x, w, b: x.group_norm(4, w, b),
    ops=("channel_moments", "group_moments", "group_normed"))  # fmt: skip

# Products.
add("linear", Operand("m 64", views=("dense",)), Operand("n 64"), takes=(F32,), limit=LONG_SUM)
add("linear", Operand("m 64", dtype=Q8_0, views=("sliced",)), Operand("n 64"), takes=(F32,),
    limit=1e-6, title="linear of blocks")  # fmt: skip
STRIDED = ("matmul_strided",)
add("mulmat", Operand("m k"), Operand("n k"), call=method("mulmat"), ops=STRIDED, limit=LONG_SUM)
add("matmul", Operand("m k"), Operand("k n"), call=method("matmul"), ops=STRIDED, limit=LONG_SUM,
    says=("mulmat",))  # fmt: skip
add("matmul_strided", Operand("m k"), Operand("n k"), limit=LONG_SUM, says=("mulmat",))
add("out_prod", Operand("k m"), Operand("k n"), call=method("out_prod"), ops=STRIDED,
    limit=LONG_SUM)  # fmt: skip
add("add_id", Operand("tokens used cols"), Operand("experts cols"),
    Operand("tokens used", below("experts"), I32))  # fmt: skip
add("linear_by_expert", Operand("experts m 64", views=("dense",)), Operand("tokens 1 64"),
    Operand("tokens used", below("experts"), I32), call=method("mulmat_id"), limit=LONG_SUM,
    extents={"experts": (1, 3, 8), "m": (1, 8, 33), "used": (1, 2)})  # fmt: skip
add("solve_tri", Operand("n n", well_conditioned), Operand("n k"), call=method("solve_tri"),
    ops=("solve_columns",), limit=LONG_SUM, extents={"n": (1, 3, 9, 33)})  # fmt: skip

# Images and sequences.
IMAGE = Operand("n 7 9 c")
BY_CHANNEL = {"n": (1, 2), "c": (1, 3, 8, 33), "out": (1, 5, 8)}
CONVOLVED: dict[str, Any] = {"ops": ("convolve",), "limit": LONG_SUM, "extents": BY_CHANNEL}
add("conv2d", IMAGE, Operand("out 3 2 c"), call=method("conv2d"),
    options=({}, {"strides": (2, 1), "paddings": (1, 0)}, {"dilations": (1, 2)}),
    **CONVOLVED)  # fmt: skip
add("conv1d", Operand("n 9 c"), Operand("out 3 c"), call=method("conv1d"), **CONVOLVED)
add("conv1d_dw", Operand("n 9 c"), Operand("c 3"), call=method("conv1d_dw", 1, 1), **CONVOLVED)
add("conv3d", Operand("n 4 5 6 c"), Operand("out 2 2 3 c"), call=method("conv3d"), **CONVOLVED)
add("conv_transpose2d", IMAGE, Operand("out 3 2 c"), call=method("conv_transpose2d", (2, 1)),
    **CONVOLVED)  # fmt: skip
add("im2col", IMAGE, call=method("im2col", (3, 2), (2, 1)), ops=("im2col",), limit=EXACT,
    extents=BY_CHANNEL)  # fmt: skip
add("col2im", Operand("n 5 8 18"), call=method("col2im", (7, 9), (3, 2)), ops=("col2im",),
    extents=BY_CHANNEL)  # fmt: skip
for name in ("max_pool", "avg_pool"):
    add(name, IMAGE, call=method(name, 3, 2, 1), ops=("pool",), extents=BY_CHANNEL)
add("avg_pool2d", IMAGE, call=method("avg_pool2d", 3, 2, 1), extents=BY_CHANNEL)
add("interpolate", Operand("n 7 9"), extents=BY_CHANNEL,
    call=lambda x, mode: x.interpolate((x.shape[0], 5, 12), mode),
    options=[{"mode": mode} for mode in ("nearest", "bilinear")])  # fmt: skip
add("resize", IMAGE, call=lambda x, mode: x.resize(5, 12, mode), ops=("resample",),
    options=[{"mode": m} for m in ("nearest", "area", "bilinear", "bicubic")],
    extents=BY_CHANNEL)  # fmt: skip
add("timestep_embedding", Operand("n", whole(0, 1000)), call=method("timestep_embedding", 6),
    ops=("sinusoids",))  # fmt: skip
add("ssm_conv", Operand("n c 9"), Operand("c 4"), extents=BY_CHANNEL)
SCANNED = {"n": (1, 2), "t": (1, 5, 9), "rows": (1, 3), "s": (1, 9, 16, 33)}
add("ssm_scan", Operand("rows 4 6 s"), Operand("n t 4 6"), Operand("n t 4"),
    Operand("4 s", between(-2, -0.1)), Operand("n t 2 s"), Operand("n t 2 s"),
    Operand("n", below("rows"), I32), call=method("ssm_scan"), extents=SCANNED)  # fmt: skip
add("rope_table", Operand("tokens", whole(0, 4096), I32), Operand("pairs", UNIT, F32),
    options=({}, {"magnitude": 1.3}))  # fmt: skip
add("rope", Operand("tokens heads 16", views=WHOLE_ROWS), Operand("tokens 8 2", UNIT, F32),
    options=[{"interleaved": i} for i in (False, True)])  # fmt: skip
HEADS = {"n": (1, 2), "tokens": (1, 5, 33), "keys": (1, 9, 257)}
add("scaled_dot_product_attention", Operand("n tokens 4 32"), Operand("n keys 2 32"),
    Operand("n keys 2 32"), call=lambda q, k, v: q.scaled_dot_product_attention(k, v, scale=0.2),
    ops=("scaled_attention",), limit=LONG_SUM, extents=HEADS, says=("attention",))  # fmt: skip

# Random numbers: the bits follow from the key.
KEY = Operand("2", whole(0, 1 << 31), U32)
add("random_bits", KEY, call=lambda key, width: random_bits(key, (3, 257), width), limit=EXACT,
    options=[{"width": width} for width in (1, 2, 4)])  # fmt: skip
for name, draw_of in {
    "random_uniform": random_uniform, "random_normal": random_normal_key,
    "random_gumbel": random_gumbel, "random_laplace": random_laplace,
}.items():  # fmt: skip
    of = "random_gaussian" if name == "random_normal" else name
    add(name, KEY, call=lambda key, dtype, f=draw_of: f(key, (3, 257), dtype), ops=(of,),
        options=[{"dtype": d} for d in FLOATS])  # fmt: skip
add("random_randint", KEY, call=lambda key: random_randint(key, -5, 70, (33,)), limit=EXACT)

# Ops without a row, and where they are tested instead.
EXEMPT: dict[str, tuple[str, ...]] = {
    # Fusion rules alone make them; they are compared with the ops that they replace.
    "tests/ops/test_elementwise_fusion.py": ("chain",),
    "tests/ops/test_norm_chain.py": ("norm_chain",),
    "tests/ops/test_rms_norm_add.py": ("rms_norm_add",),
    "tests/ops/test_heads_put.py": ("heads_put",),
    "tests/ops/test_rope_put.py": ("rope_put",),
    "tests/ops/test_rope_join.py": ("rope_join", "latent_put"),
    "tests/ops/test_rope_attention.py": ("rope_attention",),
    "tests/ops/test_summed_experts.py": ("expert_sum", "linear_by_expert_sum"),
    "tests/ops/test_route.py": ("route", "sparse_mixer"),
    "tests/ops/test_token_slots.py": ("rows_of_tokens",),
    # Activations in eight or sixteen bits, in planes that products alone read.
    "tests/ops/test_q8.py": ("q8_activations", "q8_weighted"),
    "tests/ops/test_q16.py": ("q16_activations", "q16_weighted", "q8_pair", "rms_norm_pair"),
    "tests/kernels/gpu/test_rounded_results.py": ("f16_activations", "f16_weighted"),
    "tests/kernels/rasteriser/test_normed.py": ("norm_weighted",),
    # Ops of one family of kernels.
    "tests/kernels/gpu/test_merge_q8.py": (
        "attention_merge_f16", "attention_merge_q16", "attention_merge_q8",
    ),
    "tests/kernels/gpu/test_matrix.py": ("f16_rows",),
    "tests/kernels/gpu/test_conv_matrix.py": ("convolve_matrix", "f16_pixels", "magnitudes"),
    "tests/kernels/gpu/test_attention_matrix.py": ("rounded_attention",),
    "tests/kernels/gpu/test_pairs.py": ("f16_columns",),
    "tests/kernels/gpu/test_split_k.py": ("linear_merge", "linear_splits"),
    "tests/kernels/gpu/test_rope_splits.py": ("rope_attention_splits",),
    "tests/kernels/gpu/test_gpu_sampling.py": ("top_k_sample_into",),
    "tests/kernels/rasteriser/test_attention_q8.py": ("paged_attention_q8",),
    # They read caches in blocks, or write the states of sequences.
    "tests/ops/test_attention.py": ("paged_attention", "paged_attention_splits", "attention_merge"),
    "tests/ops/test_head_scans.py": ("gated_delta", "gated_linear", "wkv7", "selective_scan"),
    "tests/ops/test_short_convolution.py": ("short_conv", "token_shift"),
    "tests/ops/test_expert_tiles.py": ("expert_tiles",),
    "tests/ops/test_sampling.py": ("penalise", "resolve_tokens", "sample", "sample_into"),
    # Operands that MLX made, and tables that an array makes.
    "tests/ops/test_quantised_arrays.py": (
        "affine_packed", "affine_scales", "float_packed", "float_scales", "gathered_matmul",
        "packed_matmul", "unpacked",
    ),
    "tests/array/test_fft.py": ("fft_pass",),
    "tests/ops/test_rope_with.py": ("rope_table_axes",),
    # No operands.
    "tests/ops/test_moving.py": ("arange", "eye", "full", "linspace"),
    "tests/ml/test_context.py": ("random_normal",),
}  # fmt: skip
