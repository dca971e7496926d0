#!/bin/sh
# MLX: exp of 88.01 is infinite on the CPU
#
# Version: mlx 0.32.4 (CPU, Linux). The largest float32 is 3.4e38, so exp is finite up to 88.72. MLX's ends at 88.0:
# exp(88.01), which is 1.668e38, is infinite, and so is exp(log(2e38)). Below, exp(-87.7) is 0 in place of 8.2e-39.
# Who adds up weights as exp(score) with a bound of 88.7 for float32 gets infinities.
. "$(dirname "$0")/common.sh"
install 'mlx[cpu]==0.32.4' numpy==2.4.6
expect 'exp(88.0): 1.652e+38, NumPy 1.652e+38
exp(88.01): inf, NumPy 1.668e+38
exp(88.7): inf, NumPy 3.326e+38
exp(-87.7): 0, NumPy 8.173e-39
exp(log(2e38)): inf' <<'END'
import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
for value in (88.0, 88.01, 88.7, -87.7):
    print(f"exp({value}): {mx.exp(mx.array(value)).item():.4g}, NumPy {np.exp(np.float32(value)):.4g}")
print(f"exp(log(2e38)): {mx.exp(mx.log(mx.array(2e38))).item():g}")
END
