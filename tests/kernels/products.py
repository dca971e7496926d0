"""Which kernel a device takes for a product."""

import numpy as np

from wgpu_backend.dtypes import Q4_0
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor


def shader_of_a_product(executor: Executor) -> str:
    """Name of the shader, with its constants, that multiplies one column."""
    data = np.zeros(Q4_0.nbytes(64 * 256), np.uint8).tobytes()
    with Context(executor) as ctx:
        y = ctx.from_bytes(Q4_0, data, 64, 256).mulmat(ctx.zeros(1, 256))
        recorded = ctx.record(y)
        label = recorded.timed()[-1][1]
        recorded.close()
    return label
