#!/bin/sh
# ml_dtypes: sorting bfloat16 or float8 arrays with a NaN leaves them unsorted, and `unique` loses values
#
# Version: ml_dtypes 0.6.0, numpy 2.4.6. NumPy sorts NaN to the end for float16, float32 and float64. For
# the types of ml_dtypes a NaN stays where it is and stops the sort: [3, NaN, 1, 2] comes back as it
# went in, and its `argsort` is [0, 1, 2, 3]. What builds on the sort is wrong without a warning:
# `unique` of 3, NaN, 1, 1, NaN in float8_e5m2 is 3 alone. JAX and ONNX use these types for weights and
# activations on the host; who looks for a NaN there, or takes percentiles, meets this.
. "$(dirname "$0")/common.sh"
install ml_dtypes==0.6.0 numpy==2.4.6
expect 'float16: sort [1.0, 2.0, 3.0, nan], argsort [2, 3, 0, 1], unique [1.0, 3.0, nan]
bfloat16: sort [3.0, nan, 1.0, 2.0], argsort [0, 1, 2, 3], unique [3.0, nan, 1.0, nan]
float8_e4m3fn: sort [3.0, nan, 1.0, 2.0], argsort [0, 1, 2, 3], unique [3.0, nan, 1.0, nan]
float8_e5m2: sort [3.0, nan, 1.0, 2.0], argsort [0, 1, 2, 3], unique [3.0]' <<'END'
import ml_dtypes
import numpy as np

for kind in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
    x = np.array([3, np.nan, 1, 2], kind)
    unique = np.unique(np.array([3, np.nan, 1, 1, np.nan], kind)).tolist()
    order = np.argsort(x).tolist()
    print(f"{kind.__name__}: sort {np.sort(x).tolist()}, argsort {order}, unique {unique}")
END
