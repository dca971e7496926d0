"""What a file says about one layer: values of its keys, shapes of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.nn.layers import Norm
from wgpu_backend.nn.module import Shape, weight

Usual = TypeVar("Usual")


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Keys and weights of layer `index` of `count`, which blocks read their sizes from.

    Parameters
    ----------
    config : Config
        Of the file.
    shapes : mapping of str to tuple of int
        Shapes of all weights of the file, by name.
    index, count : int
    make_norm : callable
        Makes a norm of the model's kind.
    """

    config: Config
    shapes: Mapping[str, Shape]
    index: int
    count: int
    make_norm: Callable[[], Norm]

    @property
    def last(self) -> bool:
        """Whether no layer follows."""
        return self.index == self.count - 1

    @property
    def width(self) -> int:
        """Values of a token between layers: ``embedding_length``."""
        return self.config.uint("embedding_length", at_least=1)

    @property
    def precedes_experts(self) -> bool:
        """Whether the layer is one of the first, which have no experts in a model of experts."""
        return self.index < self.config.uint("leading_dense_block_count", 0)

    def window(self, period: int, *, first: bool = False) -> int:
        """Positions that tokens see in the layer, themselves included; 0 for all.

        Parameters
        ----------
        period : int
            Every so many layers one sees all, where ``attention.sliding_window_pattern`` does not
            say which, or another number; 0 if none does.
        first : bool
            Whether it is the first of them, not the last.
        """
        key = "attention.sliding_window_pattern"
        window = self.config.uint("attention.sliding_window", 0)
        if self.config.is_array(key):
            return window if self.config.bools(key, self.count)[self.index] else 0
        period = self.config.uint(key, period)
        full = 0 if first else period - 1
        return 0 if period and self.index % period == full else window

    def listed_window(self) -> int:
        """Positions that tokens see in the layer where the file lists layers with a window; or 0.

        Of architectures whose published files have no windows, but folders may.
        """
        return self.window(0) if self.config.is_array("attention.sliding_window_pattern") else 0

    @property
    def rotated(self) -> bool:
        """Whether the file rotates queries and keys in the layer; it does if it does not say."""
        key = "rope.layers"
        return self.config.bools(key, self.count)[self.index] if key in self.config else True

    def activation(self, usual: Usual) -> Usual | str:
        """Return the activation of feed-forward blocks: the file's, or else the architecture's.

        The key is this package's: llama.cpp has ``hidden_activation`` for ModernBERT alone, where
        "gelu" means another function than here.
        """
        key = "feed_forward_activation"
        return self.config.string(key) if key in self.config else usual

    def __contains__(self, name: str) -> bool:
        """Whether the layer has a weight of that name, its ``.weight`` or ``.bias`` included."""
        return self.get_shape(name) is not None

    def get_shape(self, name: str) -> Shape | None:
        """Shape of a weight of the layer, or None where it has none of that name."""
        return self.shapes.get(f"blk.{self.index}.{name}")

    def uint(self, key: str, default: int | None = None, *, at_least: int = 0) -> int:
        """Integer of a key; the layer's own where the file has an array of them.

        Raises
        ------
        ModelError
            As `Config.uint_per_layer`, or it is less than `at_least`.
        """
        value = self.config.uint_per_layer(key, self.count, default)[self.index]
        if value < at_least:
            raise self.fail(f"{key} is {value}, needs at least {at_least}")
        return value

    def float(self, key: str, default: float | None = None) -> float:
        """Number of a key; the layer's own where the file has an array of them."""
        return self.config.float_per_layer(key, self.count, default)[self.index]

    def norm(self, name: str | None, *shape: int | str) -> Any:  # noqa: ANN401
        """Tag of a norm of the model's kind, over the module's `width` if no shape is given.

        None where there is no name.
        """
        if name is None:
            return None
        return weight(name, *(shape or ("width",)), kind=self.make_norm(), needed=True)

    def fail(self, message: str) -> ModelError:
        """Error that names the file."""
        return ModelError(f"{self.config.source}: {message}")
