"""Kernels of rasterisers compile with what launches choose, beyond what `test_shaders.py` tries."""

import pytest

from tests.test_shaders import MISSING, NORMED, PREPARED, label
from tests.test_shaders import test_a_shader_is_valid_within_the_default_limits as validate
from wgpu_backend.dtypes import BF16, F16, F32
from wgpu_backend.kernels.rasteriser.folder import EPILOGUE, FOLDER, LIB
from wgpu_backend.kernels.rasteriser.layouts import block_texture, float_texture
from wgpu_backend.kernels.rasteriser.textures import read_by
from wgpu_backend.ops.linear.q8 import FORMATS

REDUCED = f"{LIB}/row_subgroup"
SHUFFLED, ATTENTION = f"{FOLDER}/matmul_shuffled", f"{FOLDER}/attention"
FLOATS = (BF16, F16, F32)
FLOAT_TEXTURES = [read_by(float_texture.layout(dtype, 64), "weights", "source") for dtype in FLOATS]
BLOCK_TEXTURES = [block_texture.layout(dtype, block_texture.row_values(dtype)) for dtype in FORMATS]

CASES = [(f"{FOLDER}/matmul", {"COLS": 4, "weights": "formats/dequant/q6_k"})]
SOURCES = [{"source": f"{FOLDER}/source/{dtype}"} for dtype in FLOATS]
CASES += [(SHUFFLED, {**source, "weights": f"{LIB}/vectors_by_u64"}) for source in SOURCES]
IN_TILES = {"row_mapping": f"{LIB}/row_mapping_of_tiles"}
CASES += [(SHUFFLED, {**IN_TILES, **choices}) for choices in FLOAT_TEXTURES]
WEIGHTED = {"lane_epilogue": f"{EPILOGUE}/f32_weighted", "ROWS": 8, "SOURCES": 8}
CASES += [(SHUFFLED, {**IN_TILES, **WEIGHTED})]
CASES += [("ops/index/rows_quant", choices) for choices in FLOAT_TEXTURES]
CASES += [
    ("ops/index/rows_quant", read_by(layout, "weights", "source")) for layout in BLOCK_TEXTURES
]
CASES += [
    (f"{FOLDER}/matmul_q8", read_by(layout, "weights", "reader")) for layout in BLOCK_TEXTURES
]
CASES += [(ATTENTION, {**MISSING, "LANE_VEC4S": 8})]
CASES += [(f"{FOLDER}/scaled_attention", {"LANE_VEC4S": 8})]
CASES += [
    (ATTENTION, {**PREPARED, "k": f"lib/attention/cache_{k}", "v": f"lib/attention/cache_{v}"})
    for k, v in (("f16", "f32"), ("f32", "f16"))
]
CASES += [
    (
        ATTENTION,
        {
            **PREPARED,
            "k": "lib/attention/cache_f16",
            "v": "lib/attention/cache_f16",
            **NORMED,
            "row_reduce": REDUCED,
        },
    )
]
NORMS = ("rms_norm", "layer_norm", "softmax", "l2_norm")
CASES += [(f"ops/reduce/{norm}", {"row_reduce": REDUCED}) for norm in NORMS]
PAIRS = {"sums": f"{LIB}/sums_of_pairs"}
CASES += [(f"{FOLDER}/{product}", PAIRS) for product in ("matmul_q8", "matmul_q8_by_expert")]
ROUNDING = ("q8_rounded", "q8_summed")
CASES += [(f"{FOLDER}/matmul_q8", {"lane_epilogue": f"{EPILOGUE}/{end}"}) for end in ROUNDING]


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_kernel_is_valid(executors, case):
    validate(executors, case)
