#!/bin/sh
# gguf-py: a NaN or an infinity in a block makes the whole MXFP4 block zero
#
# Version: gguf 0.19.0. Quantising to Q8_0, Q4_0 or Q5_1 keeps a sign of broken weights: the block's
# scale is NaN or infinite, and so is what comes back. In MXFP4 the block's 32 values come back as
# zeros, so that a diverged checkpoint quantises to a model that looks sound and misses blocks.
. "$(dirname "$0")/common.sh"
install gguf==0.19.0 numpy==2.4.6
expect 'Q8_0 of nan and 31 ones: 0 finite values
Q8_0 of inf and 31 ones: 0 finite values
Q4_0 of nan and 31 ones: 0 finite values
Q4_0 of inf and 31 ones: 0 finite values
MXFP4 of nan and 31 ones: 32 finite values, all zero
MXFP4 of inf and 31 ones: 32 finite values, all zero' <<'END'
import warnings

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

warnings.simplefilter("ignore")
for kind in (Type.Q8_0, Type.Q4_0, Type.MXFP4):
    for first in (np.nan, np.inf):
        block = np.ones((1, 32), np.float32)
        block[0, 0] = first
        back = dequantize(quantize(block, kind), kind)
        finite = np.isfinite(back).sum()
        zero = ", all zero" if not back.any() else ""
        print(f"{kind.name} of {first} and 31 ones: {finite} finite values{zero}")
END
