"""The classifier that scores a text by one pooled state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.layers import Linear, Norm
from wgpu_backend.nn.mlp import activated
from wgpu_backend.nn.module import Module, Shape, weight


class Classifier(Module):
    """One or two matrices with an activation between them, as the file has them.

    Parameters
    ----------
    width : int
        Values of a state.
    shapes : mapping of str to tuple of int
        Shapes of all weights of the file, by name.
    make_norm : callable
        Makes the norm between the matrices, for files that have it.
    activation : str
        Name in `nn.mlp.ACTIVATIONS`.
    """

    dense: Linear | None = weight("cls", "inner", "width")
    norm: Norm | None = None
    output: Linear | None = weight("cls.output", "classes", "inner")

    def __init__(
        self,
        width: int,
        shapes: Mapping[str, Shape],
        make_norm: Callable[[], Norm],
        activation: str = "tanh",
    ) -> None:
        self.width, self.activation, self._make_norm = width, activation, make_norm
        self.inner = shapes.get("cls.weight", (width,))[0]
        self.classes = shapes.get("cls.output.weight", (0,))[0]

    def declare(self, has: Callable[[str], bool]) -> None:
        """Tag the norm if the file has it."""
        if has("cls.norm.weight"):
            self.norm = weight("cls.norm", "inner", kind=self._make_norm())

    @property
    def is_there(self) -> bool:
        """Return whether the file has a classifier."""
        return self.dense is not None or self.output is not None

    def __call__(self, states: Tensor) -> Tensor:
        """Return the scores of (texts, width) states: (texts, classes)."""
        y = states
        if self.dense is not None:
            y = activated(self.activation, self.dense(y))
            y = y if self.norm is None else self.norm(y)
        return y if self.output is None else self.output.precise(y)
