"""Kernels of GPUs compile with what launches choose, beyond what `test_shaders.py` tries."""

import pytest

from tests.test_shaders import MISSING, PREPARED, label
from tests.test_shaders import test_a_shader_is_valid_within_the_default_limits as validate

GPU = "kernels/gpu"
TOKEN = "kernels/gpu/attention_token"
TYPES = [("f16", "f32"), ("f32", "f16")]
ROPE = {**PREPARED, "prologue": "kernels/gpu/prologue/rope_put"}
CASES = [
    (TOKEN, {**ROPE, "k": f"lib/attention/cache_{k}", "v": f"lib/attention/cache_{v}"})
    for k, v in TYPES
]
CASES += [
    (
        TOKEN,
        {
            **PREPARED,
            "prologue": "kernels/gpu/prologue/norm_rope_put",
            "k": "lib/attention/cache_f16",
            "v": "lib/attention/cache_f16",
        },
    )
]
LIB = "kernels/gpu/lib"
for cache, sums in (("f16", "f16"), ("q8_0", "f16"), ("q4_0", "f32")):
    kinds = dict.fromkeys("kv", f"{LIB}/cache_{cache}")
    joined = {"sequences": "=positions", "sums": f"{LIB}/sums_{sums}"}
    CASES.append((TOKEN, {**MISSING, **kinds, **joined}))
CASES += [("kernels/gpu/rounded_groups", {"eight": f"{LIB}/eight_lanes_subgroup"})]

REDUCED = f"{LIB}/row_subgroups"
NORMS = ("rms_norm", "layer_norm", "softmax", "l2_norm")
CASES += [(f"ops/reduce/{norm}", {"row_reduce": REDUCED}) for norm in NORMS]

FEW_COLUMNS = [
    {"COLS": n, "SUMS": 2 * n, "lanes": f"{GPU}/lib/lane_sums_{lanes}"}
    | ({"lanes_QUARTER": -(-n // 2), "lanes_EIGHTHS": n == 8} if lanes == "subgroup" else {})
    for n in (2, 8)
    for lanes in ("subgroup", "workgroup")
]
SHARES = [
    ("floats", f"{GPU}/vectors/f16"),
    ("floats", f"{GPU}/vectors/bf16"),
    ("integers", "formats/int8/q6_k"),
]
CASES += [
    (f"{GPU}/matvec", {**choices, "share": f"{GPU}/share/{share}", "weights": weights})
    for choices in FEW_COLUMNS
    for share, weights in SHARES
]
CASES += [
    (f"{GPU}/matvec_q8", {**choices, "ROWS": 2, "SOURCES": 2, "x": "lib/q8/planar_column"})
    for choices in FEW_COLUMNS
]
BY_EXPERT = {"ROWS": 4, "SUMS": 4, "lanes": f"{GPU}/lib/lane_sums_subgroup"}
BY_EXPERT |= {"share": f"{GPU}/share/integers", "weights": "formats/int8/q4_k"}
CASES += [
    (f"{GPU}/matvec_by_expert", {**BY_EXPERT, "SOURCES": 4}),
    (f"{GPU}/matvec_by_expert_sum", BY_EXPERT),
]
IN_Q16 = {"x": f"{GPU}/lib/column_q16", "pair": f"{GPU}/product/q16"}
CASES += [
    (f"{GPU}/matvec_q8", {**FEW_COLUMNS[-1], "ROWS": 2, "SOURCES": 2, **IN_Q16, "weights": weights})
    for weights in ("formats/int8/q4_0", "formats/int8/q6_k")
]
CASES += [("kernels/gpu/rounded_groups", {"rounding": f"{LIB}/round_q16"})]
IN_F16 = [
    {
        "weights": "formats/int8/q4_0",
        "x": f"{GPU}/lib/column_f16",
        "pair": f"{GPU}/product/f16",
        "WHOLE_BYTES": True,
    },
    {
        "weights": "formats/int8/q6_k",
        "x": f"{GPU}/lib/column_f16",
        "pair": f"{GPU}/product/f16",
        "ZERO": 32.0,
    },
    {
        "weights": f"{GPU}/lib/weights_f16",
        "x": f"{GPU}/lib/column_eights_f16",
        "pair": f"{GPU}/product/eights_f16",
        "UNITS": 4,
    },
]
CASES += [
    (f"{GPU}/matvec_q8", {**choices, "ROWS": 2, "SOURCES": 2, **snippets})
    for choices in FEW_COLUMNS
    for snippets in IN_F16
]
OF_NINE = {"ROWS": 8, "SOURCES": 8, "SUMS": 9, "NORMED": True, "WHOLE": True, "ALIGNED": True}
OF_NINE |= {"lanes": f"{LIB}/lane_sums_subgroup", "lanes_QUARTER": 4, "lanes_EIGHTHS": True}
SIDE_BY_SIDE = {"weights": "formats/int8/q8_0", "iteration": f"{LIB}/two_groups_q8_0"}
SIDE_BY_SIDE |= {"x": f"{LIB}/column_f16", "pair": f"{GPU}/product/f16", "EVEN": True}
CASES += [
    (f"{GPU}/matvec_q8", {**OF_NINE, **SIDE_BY_SIDE, "ALONE": True, **many})
    for many in ({}, {"GROUPS_AT_ONCE": 4, "ONCE": True})
]
ROUNDED = {"epilogue": f"{GPU}/epilogue/rounded", "addend": "formats/vec4/f32", "ADDS": True}
TOTAL = {"made": f"{GPU}/epilogue/total", "scale": "formats/vec4/f32"}
CASES += [(f"{GPU}/matvec_q8", {**ROUNDED, **made}) for made in ({}, TOTAL)]
ROWS_IN_F16 = {
    "tile": f"{GPU}/lib/tile_f16",
    "weights": f"{GPU}/lib/weights_f16",
    "rows": f"{GPU}/lib/tile_rows_f16",
}
CASES += [(f"{GPU}/matmul_tiled", ROWS_IN_F16)]
ROWS_IN_BYTES = {"rows": f"{GPU}/lib/tile_rows_bytes", "weights": "formats/int8/q4_k"}
CASES += [(f"{GPU}/matmul_tiled", {**ROWS_IN_F16, **ROWS_IN_BYTES})]
CASES += [(f"{GPU}/matmul_tiled", {**ROWS_IN_F16, **ROWS_IN_BYTES, "rows_IN_F16": True})]
IN_PAIRS = {"rows_BY_HALVES": True, "SCALES": 2, "SUMMED": 16, "WRITTEN_OUT": 16}
CASES += [
    (f"{GPU}/matmul_pairs", {"weights": "formats/int8/q4_k", "rows_INTEGERS": False}),
    (f"{GPU}/matmul_pairs", {"y": f"{GPU}/result/vectors", "GATED": True, "ADDS": True}),
    *(
        (f"{GPU}/matmul_pairs", {**IN_PAIRS, "weights": weights, "rows": f"{LIB}/pair_rows_{rows}"})
        for rows, weights in (("f16", f"{LIB}/weights_f16"), ("bf16", "formats/vec4/bf16"))
    ),
]
TABLES = [("iq4_nl", "iq4"), ("iq4_xs", "iq4"), ("mxfp4", "fp4")]
CASES += [
    (kernel, {**choices, "weights": f"formats/int8/{dtype}", "table": f"{GPU}/table/{table}"})
    for kernel, choices in (
        (f"{GPU}/matvec", {"share": f"{GPU}/share/integers"}),
        (f"{GPU}/matvec_q8", {}),
        (f"{GPU}/matmul_tiled_q8", {}),
    )
    for dtype, table in TABLES
]


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_kernel_is_valid(executors, case):
    validate(executors, case)
