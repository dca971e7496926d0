#!/bin/sh
# MLX: the mean of float16 values is infinite as soon as their sum passes 65,504
#
# Version: mlx 0.32.4 (CPU build). The sum is rounded to float16 before it is divided, so that the mean
# of 4,096 times 100 is infinite although each value and the mean fit. NumPy adds and divides in float32
# before it rounds.
. "$(dirname "$0")/common.sh"
install 'mlx[cpu]==0.32.4' numpy==2.4.6
expect 'mean of 600 x 100: MLX 100.0, NumPy 100.0
mean of 4096 x 100: MLX inf, NumPy 100.0' <<'END'
import mlx.core as mx
import numpy as np

few, many = np.full(600, 100, np.float16), np.full(4096, 100, np.float16)
print(f"mean of 600 x 100: MLX {mx.mean(mx.array(few)).item()}, NumPy {few.mean()}")
print(f"mean of 4096 x 100: MLX {mx.mean(mx.array(many)).item()}, NumPy {many.mean()}")
END
