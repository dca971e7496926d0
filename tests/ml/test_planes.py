"""Weights with NaN or infinite scales are found while they are loaded."""

import gguf
import numpy as np
import pytest

from tests.builders import tiny_model
from wgpu_backend.dtypes import ALL, I32, U32
from wgpu_backend.errors import ModelError
from wgpu_backend.gguf_file import open_gguf
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.planes import nonfinite_blocks

FLOATS = [dtype for dtype in ALL if dtype not in (I32, U32)]


def dequantised(dtype, blocks):
    return gguf.dequantize(blocks, gguf.GGMLQuantizationType(dtype.ggml)).reshape(len(blocks), -1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_blocks_are_counted_that_dequantise_to_what_is_not_finite(rng, dtype):
    # Random bits have every kind of float in every field; a K-quant's zero scale hides none, as
    # 0 · NaN is NaN.
    blocks = rng.integers(0, 256, (5000, dtype.block_nbytes), np.uint8)
    with np.errstate(all="ignore"):
        wanted = ~np.isfinite(dequantised(dtype, blocks)).all(axis=1)
    assert 0 < wanted.sum() < 5000
    assert nonfinite_blocks(dtype, blocks) == wanted.sum()
    assert nonfinite_blocks(dtype, blocks[~wanted]) == 0


@pytest.mark.parametrize("dtype", [I32, U32], ids=str)
def test_integers_are_always_finite(dtype):
    assert nonfinite_blocks(dtype, np.full((8, 4), 255, np.uint8)) == 0


@pytest.mark.parametrize("dtype", [d.name for d in FLOATS])
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
