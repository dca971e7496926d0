"""Numbers with names."""

from __future__ import annotations

import math

e = math.e
euler_gamma = 0.57721566490153286060651209008240243
inf = math.inf
nan = math.nan
newaxis = None
pi = math.pi
