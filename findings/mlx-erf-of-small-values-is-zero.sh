#!/bin/sh
# MLX: erf of small values on the CPU has few right digits, and none below 1e-7
#
# Version: mlx 0.32.4 (CPU build). erf(x) is about 1.128 x near 0, and float32 has seven digits for it.
# `mx.erf` has a small absolute error but not a small relative one: erf(1e-7) is 0, erf(1e-6) is 6 % too
# large, and erf(1e-4) is right to three digits. `mx.tanh` is right in the same places. `nn.gelu` adds 1 to
# erf and does not show this; differences of normal distribution functions do.
. "$(dirname "$0")/common.sh"
install 'mlx[cpu]==0.32.4' numpy==2.4.6
expect 'x = 1e-07: erf 0 for 1.128e-07, tanh 1e-07 for 1e-07
x = 1e-06: erf 1.192e-06 for 1.128e-06, tanh 1e-06 for 1e-06
x = 0.0001: erf 0.0001129 for 0.0001128, tanh 0.0001 for 0.0001
x = 0.01: erf 0.01128 for 0.01128, tanh 0.01 for 0.01' <<'END'
import math

import mlx.core as mx

mx.set_default_device(mx.cpu)
for x in (1e-7, 1e-6, 1e-4, 1e-2):
    erf, right = mx.erf(mx.array(x)).item(), math.erf(x)
    tanh = mx.tanh(mx.array(x)).item()
    print(f"x = {x:g}: erf {erf:.4g} for {right:.4g}, tanh {tanh:.4g} for {math.tanh(x):.4g}")
END
