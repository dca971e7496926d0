"""Quantisation modes of MLX: groups along a row, codes packed in u32, one scale per group.

Source of the floating-point modes: OCP Microscaling Formats (MX) Specification 1.0; NVFP4 has
scales in E4M3, of 16 values each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wgpu_backend.dtypes import U8, U32
from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.ops.check import FLOATS, require, require_dtype

# Those that MLX has.
AFFINE_BITS, AFFINE_GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
# Group size and bits of the modes that have no choice.
FIXED: Mapping[str, tuple[int, int]] = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}


class Coding(NamedTuple):
    """A quantisation mode with its group size and bits.

    Parameters
    ----------
    mode : str
        ``affine``: scale · code + bias. ``mxfp4``, ``mxfp8``, ``nvfp4``: scale · small float.
    group_size : int
        Values that share a scale.
    bits : int
        Of a code.
    """

    mode: str
    group_size: int
    bits: int

    @property
    def choices(self) -> dict[str, str | int]:
        """Return the choices of a shader that decodes by ``lib/packed``."""
        return {"weights": f"lib/packed/{self.mode}", "BITS": self.bits, "GROUP": self.group_size}

    def words(self, values: int) -> int:
        """Return how many u32 words hold this many codes."""
        return values * self.bits // 32


def get_coding(name: str, mode: str, group_size: int | None, bits: int | None) -> Coding:
    """Return the coding of a mode; None stands for the mode's default.

    Raises
    ------
    OptionError
        There is no such mode, or it has no such groups or bits.
    """
    if mode in FIXED:
        fixed = FIXED[mode]
        coding = Coding(mode, group_size or fixed[0], bits or fixed[1])
        require(
            coding[1:] == fixed,
            OptionError,
            f"{name}: {mode} with groups of {coding.group_size}, {coding.bits} bits, needs groups "
            f"of {fixed[0]}, {fixed[1]} bits",
        )
        return coding
    known = ", ".join(("affine", *FIXED))
    require(mode == "affine", OptionError, f"{name}: mode is {mode!r}, needs one of {known}")
    coding = Coding(mode, group_size or 64, bits or 4)
    require(
        coding.bits in AFFINE_BITS and coding.group_size in AFFINE_GROUPS,
        OptionError,
        f"{name}: affine with groups of {coding.group_size}, {coding.bits} bits, needs groups of "
        f"one of {AFFINE_GROUPS} and one of {AFFINE_BITS} bits",
    )
    return coding


def require_packed(
    name: str, packed: Node, scales: Node, biases: Node | None, coding: Coding
) -> int:
    """Check that planes belong together, and return the number of values of a row.

    Raises
    ------
    DTypeError, ShapeError
        A plane has another type or shape than the mode requires.
    """
    affine = coding.mode == "affine"
    require_dtype(name, "packed", packed, (U32,))
    # Bytes are bits of E8M0 or E4M3.
    require_dtype(name, "scales", scales, FLOATS if affine else (U8,))
    require(
        (biases is not None) == affine,
        ShapeError,
        f"{name}: {coding.mode} {'needs biases' if affine else 'has no biases, needs None'}",
    )
    require(
        len(packed.spec.shape) > 1, ShapeError, f"{name}: packed is {packed.spec.shape}, needs rows"
    )
    *batch, words = packed.spec.shape
    values = words * 32 // coding.bits
    want = (*batch, values // coding.group_size)
    whole = words * 32 % coding.bits == 0 and values % coding.group_size == 0
    planes = {"scales": scales} | ({} if biases is None else {"biases": biases})
    for label, plane in planes.items():
        require(
            whole and plane.spec.shape == want,
            ShapeError,
            f"{name}: {label} is {plane.spec.shape}, {packed.spec.shape} words of "
            f"{coding.bits}-bit codes need {want}",
        )
    if biases is not None:
        require_dtype(name, "biases", biases, (scales.spec.dtype,))
    return values
