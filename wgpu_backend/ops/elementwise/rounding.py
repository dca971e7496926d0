"""Rounding of each value to a whole number: floor, ceil, trunc and round."""

from __future__ import annotations

import numpy as np

from wgpu_backend.ops.elementwise.makers import unary_op

_KEPT = "Zeros keep their sign; infinities and NaN stay as they are."

floor = unary_op("floor", np.floor, "Return the largest whole number not above the value.", _KEPT)
ceil = unary_op("ceil", np.ceil, "Return the smallest whole number not below the value.", _KEPT)
trunc = unary_op("trunc", np.trunc, "Return the value without its fraction.", _KEPT)
round = unary_op(
    "round", np.rint, "Return the nearest whole number, the even one of two equally near.", _KEPT
)
