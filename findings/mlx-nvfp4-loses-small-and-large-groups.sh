#!/bin/sh
# MLX: nvfp4 without a global scale turns groups below 0.0059 into zeros and cuts values at 2,688
#
# Version: mlx 0.32.4 (CPU build). `mx.quantize(w, mode="nvfp4")` stores a float8 scale (e4m3) for each 16
# values, a sixth of the largest. A scale below 2^-10 rounds to 0, so a group whose largest weight is 0.005
# is lost as a whole; mxfp4, whose scales are powers of two, keeps it. Above 6 x 448 the scale ends.
# There is no warning. Who stores small weights, or differences of weights, has to pass a
# `global_scale`.
. "$(dirname "$0")/common.sh"
install 'mlx[cpu]==0.32.4' numpy==2.4.6
expect 'nvfp4: 0.005 -> 0, 0.006 -> 0.005859, 1.0 -> 1.031, 4096.0 -> 2688
mxfp4: 0.005 -> 0.005859, 0.006 -> 0.005859, 1.0 -> 1, 4096.0 -> 4096' <<'END'
import mlx.core as mx

for mode in ("nvfp4", "mxfp4"):
    pairs = []
    for value in (0.005, 0.006, 1.0, 4096.0):
        stored = mx.quantize(mx.full((1, 32), value), mode=mode)
        back = mx.dequantize(*stored, mode=mode).astype(mx.float32)[0, 0].item()
        pairs.append(f"{value} -> {back:.4g}")
    print(f"{mode}: {', '.join(pairs)}")
END
