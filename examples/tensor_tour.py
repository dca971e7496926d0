"""Make, view and compute tensors, each line with its NumPy equivalent: all print "equal".

::

    $ python examples/tensor_tour.py
    on llvmpipe (LLVM 15.0.6, 256 bits)
    x + 1                             (3, 4)     equal
    …

Nothing runs when an op is called: it joins a graph, and `Tensor.numpy` (or `Context.compute`, for
several tensors at once) runs what is needed. A device as the only argument (``cpu``) runs it there.
"""

import sys

import numpy as np

import wgpu_backend as wb


def main(device: str | None = None) -> None:
    with wb.context(device) as context:
        print("on", context.device.name)
        tour(context)


def tour(context: wb.Context) -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = context.from_numpy(a)
    show("x + 1", x + 1, a + 1)
    show("x * x / 2 - x", x * x / 2 - x, a * a / 2 - a)

    # Views cost nothing: shape, strides and offset change, the bytes stay where they are.
    show("x[1:, ::2]", x[1:, ::2], a[1:, ::2])
    show("x.transpose()", x.transpose(), a.T)
    show("x.reshape(2, -1)", x.reshape(2, -1), a.reshape(2, -1))
    show("x[2].reshape(1, 4) + x", x[2].reshape(1, 4) + x, a[2] + a)

    # The weight comes first in mulmat, as in a model's file: (m, k) and (n, k) give (n, m).
    w = context.from_numpy(a[:2])
    show("w.mulmat(x)", w.mulmat(x), a @ a[:2].T)
    show("x @ w.transpose()", x @ w.transpose(), a @ a[:2].T)
    show("x.softmax()", x.softmax(), softmax(a))
    show("x.cast(dtype=wb.f16)", x.cast(dtype=wb.f16), a.astype(np.float16))

    # One run for several tensors; both see the same x.
    up, down = x.scale(factor=2.0), x.scale(factor=0.5)
    context.compute(up, down)
    show("up.concat(down, axis=1)", up.concat(down, axis=1), np.concatenate([2 * a, a / 2], 1))


def softmax(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def show(text: str, tensor: wb.Tensor, wanted: np.ndarray) -> None:
    same = np.allclose(tensor.numpy(), wanted, rtol=1e-6) and tensor.shape == wanted.shape
    print(f"{text:<33} {tensor.shape!s:<10} {'equal' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
