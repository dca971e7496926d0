"""Records what libggml makes of a few rows in every format: ``tests/data/quantised.npz``.

Run it from the root of the repository, in an environment with numpy, gguf and llama.cpp's library
(``pip install xllamacpp==2026.10.11549``)::

    python -m tests.data.make_quantised
"""

import ctypes
from pathlib import Path

import numpy as np
import xllamacpp

from tests.files.quantize.rows import FILE, FORMATS, importances, rows
from wgpu_backend.dtypes import DType, named


class _Memory(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("data", ctypes.c_void_p), ("none", ctypes.c_bool))


def library() -> ctypes.CDLL:
    """Load libggml, with its tables of f16 filled."""
    ggml = ctypes.CDLL(str(Path(xllamacpp.__file__).with_name("xllamacpp.abi3.so")))
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, *[count] * 3, pointer]
    ggml.ggml_init.restype, ggml.ggml_init.argtypes = pointer, [_Memory]
    ggml.ggml_init(_Memory(1024, None, False))
    return ggml


def quantised(
    ggml: ctypes.CDLL, values: np.ndarray, dtype: DType, importance: np.ndarray | None
) -> np.ndarray:
    """Bytes of each row, as libggml writes them."""
    count, cols = values.shape
    made = np.zeros((count, dtype.nbytes(cols)), np.uint8)
    place = None if importance is None else importance.ctypes.data
    ggml.ggml_quantize_chunk(
        dtype.ggml, values.ctypes.data, made.ctypes.data, 0, count, cols, place
    )
    return made


def main() -> None:
    """Write the file."""
    ggml, values = library(), rows()
    made = {}
    for name in FORMATS:
        made[name] = quantised(ggml, values, named(name), None)
        weighted = quantised(ggml, values, named(name), importances())
        if not np.array_equal(weighted, made[name]):
            made[f"{name}_weighted"] = weighted
    np.savez_compressed(FILE, **made)


if __name__ == "__main__":
    main()
