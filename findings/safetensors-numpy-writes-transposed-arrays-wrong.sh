#!/bin/sh
# safetensors: a transposed NumPy array is saved with its shape and the order of its memory
#
# Version: safetensors 0.8.0; 0.7.0 saves the same arrays right. `safetensors.numpy` writes the memory of
# an array as it lies and does not look at its strides: after a round trip the shape is right, the numbers
# are the same, and their places are not. There is no error; `safetensors.torch` refuses a tensor that is
# not contiguous. A conversion of weights that transposes a matrix before it saves meets this;
# `numpy.ascontiguousarray` helps.
. "$(dirname "$0")/common.sh"
program='
import numpy as np
from safetensors import __version__
from safetensors.numpy import load, save

x = np.arange(6.0).reshape(2, 3)
cases = {"x": x, "x.T": x.T, "asfortranarray(x)": np.asfortranarray(x)}
for name, array in cases.items():
    back = load(save({"w": array}))["w"]
    equal = "equal" if np.array_equal(array, back) else "differs"
    print(f"{__version__} {name}: {array.tolist()} -> {back.tolist()}, {equal}")
'
install safetensors==0.7.0 numpy==2.4.6
expect "0.7.0 x: [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] -> [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], equal
0.7.0 x.T: [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] -> [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], equal
0.7.0 asfortranarray(x): [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] -> [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], equal" <<END
$program
END
install safetensors==0.8.0
expect "0.8.0 x: [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] -> [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], equal
0.8.0 x.T: [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] -> [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], differs
0.8.0 asfortranarray(x): [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] -> [[0.0, 3.0, 1.0], [4.0, 2.0, 5.0]], differs" <<END
$program
END
