"""Element types: what a name means in bytes, in NumPy and in a GGUF file.

A `DType` is a block of `block` elements in `block_nbytes` bytes. For plain types the block is one
element. `snippet` names the WGSL file in `shaders/load`, `shaders/store` or `shaders/quant` that
reads it; `ggml` is the type's number in GGUF files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wgpu_backend.errors import DTypeError


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Parameters
    ----------
    name : str
        Lower-case name, as in messages: ``f32``, ``q4_k``.
    block : int
        Elements in a block; 1 for plain types.
    block_nbytes : int
        Bytes in a block.
    ggml : int or None
        The type's number in GGUF files.
    numpy : np.dtype or None
        How the host holds one element; None for block formats.
    """

    name: str
    block: int
    block_nbytes: int
    ggml: int | None
    numpy: np.dtype[np.generic] | None

    def __str__(self) -> str:
        return self.name

    @property
    def quantised(self) -> bool:
        """Whether elements live in blocks that share scales."""
        return self.block > 1

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` elements, a multiple of the block."""
        if elements % self.block:
            raise DTypeError(f"{self.name}: {elements} elements, blocks hold {self.block}")
        return elements // self.block * self.block_nbytes


def _plain(name: str, numpy: str, ggml: int | None) -> DType:
    dtype = np.dtype(numpy)
    return DType(name, 1, dtype.itemsize, ggml, dtype)


F32 = _plain("f32", "<f4", 0)
F16 = _plain("f16", "<f2", 1)
BF16 = _plain("bf16", "<u2", 30)  # NumPy has no bfloat16: the bits travel as u16
I32 = _plain("i32", "<i4", 26)
U32 = _plain("u32", "<u4", None)
Q4_0 = DType("q4_0", 32, 18, 2, None)
Q4_1 = DType("q4_1", 32, 20, 3, None)
Q5_0 = DType("q5_0", 32, 22, 6, None)
Q5_1 = DType("q5_1", 32, 24, 7, None)
Q8_0 = DType("q8_0", 32, 34, 8, None)
Q4_K = DType("q4_k", 256, 144, 12, None)
Q5_K = DType("q5_k", 256, 176, 13, None)
Q6_K = DType("q6_k", 256, 210, 14, None)

ALL: tuple[DType, ...] = (
    F32, F16, BF16, I32, U32, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K,
)  # fmt: skip
_BY_NAME = {dtype.name: dtype for dtype in ALL}
_BY_GGML = {dtype.ggml: dtype for dtype in ALL if dtype.ggml is not None}


def named(name: str) -> DType:
    """Look a type up by its name, any case.

    Raises
    ------
    DTypeError
        No type has that name.
    """
    try:
        return _BY_NAME[name.lower()]
    except KeyError:
        raise DTypeError(f"dtype {name!r}: known are {', '.join(_BY_NAME)}") from None


def from_ggml(number: int) -> DType | None:
    """Type with that number in GGUF files, or None."""
    return _BY_GGML.get(number)
