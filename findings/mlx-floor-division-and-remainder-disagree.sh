#!/bin/sh
# MLX: 1 // 0.1 is 10 and 1 % 0.1 is 0.1
#
# Version: mlx 0.32.4 (CPU, Linux). Python and NumPy define both by a = (a // b) * b + a % b, and take care that a
# quotient that was rounded up does not count. MLX floors the rounded quotient, so the two add up to 1.1. `divmod` has
# the same two values. Who computes a bin and the place in it gets the end of the wrong bin.
. "$(dirname "$0")/common.sh"
install 'mlx[cpu]==0.32.4' numpy==2.4.6
expect 'MLX: 1 // 0.1 = 10, 1 % 0.1 = 0.1, together 1.1
NumPy: 1 // 0.1 = 9, 1 % 0.1 = 0.1, together 1
MLX: divmod = [10.0, 0.1]' <<'END'
import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
for name, a, b in (("MLX", mx.array(1.0), mx.array(0.1)), ("NumPy", np.float32(1), np.float32(0.1))):
    whole, rest = (a // b).item(), (a % b).item()
    print(f"{name}: 1 // 0.1 = {whole:g}, 1 % 0.1 = {rest:.2g}, together {whole * 0.1 + rest:.2g}")
print("MLX: divmod =", [round(part.item(), 6) for part in mx.divmod(mx.array(1.0), mx.array(0.1))])
END
