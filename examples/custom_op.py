"""Define an op outside the package, and compare its values with those of its NumPy reference.

::

    $ python examples/custom_op.py
    snake(2.00) = 3.416, NumPy has 3.416
    NMSE of 10007 values: 3.1e-16

The WGSL is in ``snake.wgsl``. A device as the only argument (``cpu``) runs it there.
"""

import sys
from pathlib import Path

import numpy as np

import wgpu_backend as wb


@wb.op(shader=Path(__file__).with_name("snake.wgsl"), dense=("x",))
def snake(x: wb.Node, *, alpha: float) -> wb.Launch:
    """Add a wave to each value: ``x + sin²(alpha · x) / alpha``.

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
    wb.require_dtype("snake", "x", x, wb.FLOATS)
    out = wb.Spec.dense(x.spec.shape, x.spec.dtype)
    threads, params = wb.ceil_div(out.size, 4), {"alpha": alpha}
    return wb.Launch(out, {"x": x}, threads=threads, params=params, in_place=("x",))


@snake.reference
def numpy_snake(x: wb.Array, *, alpha: float) -> wb.Array:
    return x + np.sin(alpha * x) ** 2 / alpha


# How `wgpu-backend op check` tries it.
wb.testing.trial(snake, "rows cols", options={"alpha": 0.5}, limit=1e-5)


def main(device: str | None = None) -> None:
    values = np.linspace(-4, 4, 10_007, dtype=np.float32)
    with wb.context(device) as context:
        y = snake(context.from_numpy([2.0]), alpha=0.5).numpy()
        print(f"snake(2.00) = {y[0]:.3f}, NumPy has {numpy_snake(2.0, alpha=0.5):.3f}")
        found = wb.testing.check_graph(
            context, lambda ctx: snake(ctx.from_numpy(values), alpha=0.5), limit=1e-5
        )
        print(f"NMSE of {values.size} values: {found:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
