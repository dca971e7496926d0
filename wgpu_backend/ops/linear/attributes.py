"""Prologue, epilogue and precision of a product with a weight, as data.

Fusion rules write a prologue and an epilogue onto a `linear` node, instead of naming an op for each
combination. Kernel families read them from the launch to decide whether they have a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wgpu_backend.graph.node import Launch

Form = Literal["values", "q8", "q8_pair", "q16", "f16", "f16_nibbles", "f16_rows", "f16_columns"]
Precision = Literal["default", "full", "f16"]


@dataclass(frozen=True, slots=True)
class Prologue:
    """The form in which a product gets the rows of x.

    Parameters
    ----------
    form : str
        ``values``; ``q8``, rounded to eight bits by `q8_activations`; or ``q8_pair``, split into
        two such parts by `q8_pair`, whose products are added up; ``q16``, rounded to sixteen bits,
        two bytes each, by `q16_activations`; ``f16``, rounded to f16 by groups
        of 32 by `f16_activations`; or ``f16_nibbles``, so that a weight's bytes need no unpacking;
        ``f16_rows``, rounded to f16 by whole rows by `f16_rows`, for matrix units;
        ``f16_columns``, the same with all rows' values of one k together, by `f16_columns`.
    eps : float or None
        Rows lack the factor of a norm: their squares are appended (`norm_weighted`,
        `q8_weighted`, `q16_weighted`, `f16_weighted`), and products are divided by the root of the
        mean square plus this.
    norm : bool
        Rows are values before that norm: the operand `gain` is its weight, and products also sum
        the squares.
    """

    form: Form = "values"
    eps: float | None = None
    norm: bool = False

    @property
    def parts(self) -> int:
        """Return how many rows of x make one row of the result."""
        return 2 if self.form == "q8_pair" else 1

    @property
    def in_bytes(self) -> bool:
        """Return whether rows are in eight bits."""
        return self.form in ("q8", "q8_pair")

    @property
    def in_f16(self) -> bool:
        """Return whether rows are in f16, by groups."""
        return self.form in ("f16", "f16_nibbles")


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The steps that a product applies to its sums before it stores them; an addend is an operand.

    Parameters
    ----------
    activation : str or None
        The weight has a gate above a projection: ``act(gate) * up``; silu, gelu, gelu_erf,
        quick_gelu or relu.
    norm : bool
        Sums go into the operand `total`. The result is these times `scale`, the weight of the norm
        that follows, with the squares of which the next product makes its factor.
    form : str
        Of rows of the result, as in `Prologue`: ``q8``, as `q8_activations` rounds them, or
        `q8_weighted` with a norm; ``q16``, ``f16`` and ``f16_nibbles`` accordingly.
    planar : bool
        Groups that are rounded lie in planes, see `q8_activations`; those of ``q16`` always do.
    """

    activation: str | None = None
    norm: bool = False
    form: Form = "values"
    planar: bool = False

    @property
    def is_rounded(self) -> bool:
        """Return whether results are rounded by groups."""
        return self.form != "values"


@dataclass(frozen=True, slots=True)
class Attributes:
    """The prologue, epilogue and precision of a product.

    Parameters
    ----------
    precision : str
        ``default``; ``full`` for logits, whose activations are never rounded to eight bits alone;
        ``f16`` where pairs of f16 do, with 32 products summed before a sum goes into f32.
    """

    prologue: Prologue
    epilogue: Epilogue
    precision: Precision = "default"


VALUES, Q8, Q8_PAIR, Q16 = (Prologue(), Prologue("q8"), Prologue("q8_pair"), Prologue("q16"))
SUMS = Epilogue()


def get_attributes(launch: Launch) -> Attributes:
    """Return the prologue, epilogue and precision of a product's launch."""
    found = launch.attributes
    assert isinstance(found, Attributes), f"launch of {launch.out.shape}: it is of no linear op"
    return found
