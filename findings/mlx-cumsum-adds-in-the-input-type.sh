#!/bin/sh
# MLX: cumsum and cumprod add in the type of their input, although sum and prod widen
#
# Version: mlx 0.32.4 (CPU build). `sum` of int8 is an int32 and `sum` of bfloat16 is exact for 1,000
# ones. `cumsum` of int8 stays int8 and wraps; of bfloat16 it stands still at 256, where adding one is
# half of the spacing of numbers. NumPy's cumsum widens int8 to int64.
. "$(dirname "$0")/common.sh"
install 'mlx[cpu]==0.32.4'
expect 'int8 [100, 100]: sum 200 (int32), last of cumsum -56 (int8)
1,000 ones, bfloat16: sum 1000, last of cumsum 256' <<'END'
import mlx.core as mx

x = mx.array([100, 100], dtype=mx.int8)
total, running = mx.sum(x), mx.cumsum(x)
print(
    f"int8 [100, 100]: sum {total.item()} ({str(total.dtype)[9:]}), "
    f"last of cumsum {running[-1].item()} ({str(running.dtype)[9:]})"
)
ones = mx.ones(1000, dtype=mx.bfloat16)
print(
    f"1,000 ones, bfloat16: sum {mx.sum(ones).item():.0f}, "
    f"last of cumsum {mx.cumsum(ones)[-1].item():.0f}"
)
END
