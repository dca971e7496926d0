"""The configuration of one layer in a file: values of its keys, shapes of its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.nn.layers import Norm
from wgpu_backend.nn.module import Shape, old_names, weight

Usual = TypeVar("Usual")


@old_names(before_experts="precedes_experts", rotated="has_rope", shape_of="get_shape")
@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The keys and weights of layer `index` of `count`, from which blocks read their sizes.

    Parameters
    ----------
    config : Config
        Keys of the file.
    shapes : mapping of str to tuple of int
        Shapes of all weights of the file, by name.
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
        """Return whether no layer follows."""
        return self.index == self.count - 1

    @property
    def width(self) -> int:
        """Return the values of a token between layers: ``embedding_length``."""
        return self.config.uint("embedding_length", at_least=1)

    @property
    def precedes_experts(self) -> bool:
        """Return whether the layer is one of the first, dense ones in a model with experts."""
        return self.index < self.config.uint("leading_dense_block_count", 0)

    def window(self, period: int, *, first: bool = False) -> int:
        """Return the attention window of the layer, the token itself included; 0 for none.

        Parameters
        ----------
        period : int
            One layer in so many has full attention; 0 if none has. The file's
            ``attention.sliding_window_pattern`` overrides it.
        first : bool
            Whether the first layer of each period has full attention, not the last.
        """
        key = "attention.sliding_window_pattern"
        window = self.config.uint("attention.sliding_window", 0)
        if self.config.is_array(key):
            return window if self.config.bools(key, self.count)[self.index] else 0
        period = self.config.uint(key, period)
        full = 0 if first else period - 1
        return 0 if period and self.index % period == full else window

    def listed_window(self) -> int:
        """Return the window of the layer if the file lists layers with a window, else 0.

        For architectures whose published GGUF files have no windows, although checkpoints may.
        """
        return self.window(0) if self.config.is_array("attention.sliding_window_pattern") else 0

    @property
    def has_rope(self) -> bool:
        """Return whether queries and keys of the layer are rotated; true by default."""
        key = "rope.layers"
        return self.config.bools(key, self.count)[self.index] if key in self.config else True

    def activation(self, usual: Usual) -> Usual | str:
        """Return the activation of feed-forward blocks: the file's, or `usual`.

        The key is this package's own: llama.cpp has ``hidden_activation`` for ModernBERT only,
        where "gelu" means a different function.
        """
        key = "feed_forward_activation"
        return self.config.string(key) if key in self.config else usual

    def __contains__(self, name: str) -> bool:
        """Return whether the layer has a weight of that name, which includes ``.weight``."""
        return self.get_shape(name) is not None

    def get_shape(self, name: str) -> Shape | None:
        """Return the shape of a weight of the layer, or None if it has no weight of that name."""
        return self.shapes.get(f"blk.{self.index}.{name}")

    def uint(self, key: str, default: int | None = None, *, at_least: int = 0) -> int:
        """Return the integer of a key; the layer's own if the file has an array of them.

        Raises
        ------
        ModelError
            As `Config.uint_per_layer`, or the value is less than `at_least`.
        """
        value = self.config.uint_per_layer(key, self.count, default)[self.index]
        if value < at_least:
            raise self.fail(f"{key} is {value}, needs at least {at_least}")
        return value

    def float(self, key: str, default: float | None = None) -> float:
        """Return the number of a key; the layer's own if the file has an array of them."""
        return self.config.float_per_layer(key, self.count, default)[self.index]

    def norm(self, name: str | None, *shape: int | str) -> Any:  # noqa: ANN401
        """Return the tag of a norm of the model's kind, by default over the module's `width`.

        Without a name, return None.
        """
        if name is None:
            return None
        return weight(name, *(shape or ("width",)), kind=self.make_norm(), needed=True)

    def fail(self, message: str) -> ModelError:
        """Return an error whose message names the file."""
        return ModelError(f"{self.config.source}: {message}")
