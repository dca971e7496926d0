"""Weights with NaN or infinite scales are found while they are loaded."""

import numpy as np
import pytest

from tests.builders import tiny_model
from wgpu_backend.dtypes import ALL, BF16, F16, F32, I32, MXFP4, NVFP4, Q8_1, Q8_K, U32
from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.host_values import dequantise
from wgpu_backend.ops.layouts.planes import nonfinite_blocks

ALWAYS_FINITE = (MXFP4, NVFP4)  # every byte of their scales is a number
BLOCKS = [dtype for dtype in ALL if dtype.quantised and dtype not in ALWAYS_FINITE]
FLOATS = [F32, F16, BF16, *BLOCKS]


def dequantised(dtype, blocks):
    return dequantise(dtype, blocks.tobytes(), Spec.dense((len(blocks), dtype.block), dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_blocks_of_nonfinite_values_are_counted(rng, dtype):
    # Random bits have every kind of float in every field; a K-quant's zero scale hides none, as
    # 0 · NaN is NaN.
    blocks = rng.integers(0, 256, (5000, dtype.block_nbytes), np.uint8)
    if dtype == Q8_K:
        blocks[1::2, 3] &= 0x9F  # its f32 scale is NaN or infinite, or too small to overflow
        blocks[::2, 2:4] = 0xFF
    with np.errstate(all="ignore"):
        wanted = ~np.isfinite(dequantised(dtype, blocks)).all(axis=1)
    assert 0 < wanted.sum() < 5000
    assert nonfinite_blocks(dtype, blocks) == wanted.sum()
    assert nonfinite_blocks(dtype, blocks[~wanted]) == 0


@pytest.mark.parametrize("dtype", [I32, U32, *ALWAYS_FINITE], ids=str)
def test_other_types_are_always_finite(dtype):
    blocks = np.full((8, dtype.block_nbytes), 255, np.uint8)
    assert nonfinite_blocks(dtype, blocks) == 0


# gguf-py writes Q8_1 with blocks of 40 bytes, which nobody reads.
@pytest.mark.parametrize("dtype", [d.name for d in FLOATS if d != Q8_1])
def test_loading_names_the_tensor_and_counts_its_blocks(full, tmp_path, dtype):
    path = tiny_model(tmp_path / "model.gguf", dtype=dtype)
    name = "blk.1.ffn_gate.weight"
    with open_gguf(path) as file:
        info, data = file.tensors[name], bytes(file.data(name))
    blocks = np.frombuffer(data, np.uint8).reshape(-1, info.dtype.block_nbytes).copy()
    blocks[[3, 7]] = 0xFF
    path.write_bytes(path.read_bytes().replace(data, blocks.tobytes()))
    for executor in (full, NumpyExecutor()):
        wanted = rf"{name}: 2 of {len(blocks)} blocks have a NaN"
        with open_gguf(path) as file, pytest.raises(ModelError, match=wanted):
            Backend(file, executor).load()
