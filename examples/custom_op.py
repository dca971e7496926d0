"""An op of one's own, from outside the package: its values beside those of its NumPy twin.

::

    $ python examples/custom_op.py
    snake(2.00) = 3.416, NumPy has 3.416
    NMSE of 10007 values: 3.1e-16

The WGSL is in ``snake.wgsl``. A device as the only argument (``cpu``) runs it there.
"""

import sys
from pathlib import Path

import numpy as np

from wgpu_backend import BackendParams, Context, op
from wgpu_backend.cpu.twin import Array
from wgpu_backend.engine.loading import choose_device
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.backend import make_executor
from wgpu_backend.ops.check import FLOATS, quads, require_dtype
from wgpu_backend.testing import check_graph, trial


@op(shader=Path(__file__).with_name("snake.wgsl"), dense=("x",))
def snake(x: Node, *, alpha: float) -> Launch:
    """Value plus a wave of it: ``x + sin²(alpha · x) / alpha``.

    Source: Ziyin, Hartwig & Ueda 2020, "Neural Networks Fail to Learn Periodic Functions", eq. 3.

    Parameters
    ----------
    x : (...), f32, f16 or bf16
    alpha : float
        Radians of the wave per unit of `x`; not 0.

    Returns
    -------
    Like `x`, dense.
    """
    require_dtype("snake", "x", x, FLOATS)
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    params = {"size": out.size, "alpha": alpha}
    return Launch(out, {"x": x}, threads=quads(out.size), params=params, in_place=("x",))


@snake.twin
def numpy_snake(x: Array, *, alpha: float) -> Array:
    return x + np.sin(alpha * x) ** 2 / alpha


trial(snake, "rows cols", options={"alpha": 0.5}, limit=1e-5)  # for `wgpu-backend op check`


def main(device: str | None = None) -> None:
    kind, info = choose_device(device)
    executor = make_executor(kind, BackendParams(info))
    values = np.linspace(-4, 4, 10_007, dtype=np.float32)
    with Context(executor) as context:
        y = snake(context.from_numpy([2.0]), alpha=0.5).numpy()
        print(f"snake(2.00) = {y[0]:.3f}, NumPy has {numpy_snake(2.0, alpha=0.5):.3f}")
    found = check_graph(executor, lambda ctx: snake(ctx.from_numpy(values), alpha=0.5), limit=1e-5)
    print(f"NMSE of {values.size} values: {found:.1e}")
    executor.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
