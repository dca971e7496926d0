"""Typed, checked access to a model's metadata.

Keys are written as in the GGUF specification but without the architecture: ``block_count`` is
looked up as ``llama.block_count`` in a llama file, while keys such as ``general.name`` and
``tokenizer.ggml.model`` are used unchanged. Metadata comes from untrusted files, so each method
checks the type, and the error names the file and the key. Relations between values (heads that
divide, sizes that match) are checked by the models.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wgpu_backend.errors import ModelError

Value: TypeAlias = str | int | float | bool | list[str] | npt.NDArray[np.generic]
"""A metadata value; numeric and bool arrays are NumPy's, arrays of strings are lists."""

_GLOBAL_PREFIXES = (
    "general.", "tokenizer.", "quantize.", "split.", "adapter.", "imatrix.", "training.", "xielu.",
)  # fmt: skip
# A file has at most this many tensors, so it cannot have more layers.
_MAX_LAYERS = 65_536
# The widest integer of the format.
_MAX_UINT = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Config:
    """Metadata of one model.

    In every method a default of None means that the key is required: ModelError if it is missing.

    Parameters
    ----------
    source : str
        The file, as messages name it.
    metadata : Mapping of str to Value
        Every key with its full name.
    """

    source: str
    metadata: Mapping[str, Value]

    @property
    def architecture(self) -> str:
        """Return the value of ``general.architecture``."""
        name = self.metadata.get("general.architecture")
        if name is None:
            raise ModelError(
                f"{self.source}: key 'general.architecture' is missing, every model needs it"
            )
        if not isinstance(name, str) or not name:
            raise self._wrong_type("general.architecture", name, "a name")
        return name

    def __contains__(self, key: str) -> bool:
        return self._full(key) in self.metadata

    def string(self, key: str, default: str | None = None) -> str:
        """Return a string.

        Raises
        ------
        ModelError
            The key is missing and there is no default, or the value is not a string.
        """
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong_type(key, value, "a string")
        return value

    def uint(
        self, key: str, default: int | None = None, *, at_least: int = 0, at_most: int = _MAX_UINT
    ) -> int:
        """Return an integer of any width and signedness from `at_least` to `at_most`.

        Raises
        ------
        ModelError
            The key is missing and there is no default, or the value is not an integer in that
            range.
        """
        value = self._value(key, default)
        # Python's bool is an int.
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong_type(key, value, "an unsigned integer")
        if not at_least <= value <= at_most:
            needs = f"at least {at_least}" if value < at_least else f"at most {at_most}"
            raise self._error(key, f"is {value}, needs {needs}")
        return value

    def strings(self, key: str, default: list[str] | None = None) -> list[str]:
        """Return an array of strings.

        Raises
        ------
        ModelError
            The key is missing and there is no default, or the value is not an array of strings.
        """
        value = self._value(key, default)
        if not isinstance(value, list):
            raise self._wrong_type(key, value, "an array of strings")
        return value

    def ints(self, key: str, default: list[int] | None = None) -> list[int]:
        """Return an array of integers of any width.

        Raises
        ------
        ModelError
            The key is missing and there is no default, or the value is not an array of integers.
        """
        if default is not None and key not in self:
            return default
        return self._numbers(key, "iu", "an array of integers").tolist()

    def floats(self, key: str, default: list[float] | None = None) -> list[float]:
        """Return an array of floats; elements may be infinite.

        Raises
        ------
        ModelError
            The key is missing and there is no default, or the value is not an array of floats.
        """
        if default is not None and key not in self:
            return default
        return self._numbers(key, "f", "an array of floats").tolist()

    def is_array(self, key: str) -> builtins.bool:
        """Return whether the value of a key is an array of numbers or truth values."""
        return isinstance(self.metadata.get(self._full(key)), np.ndarray)

    def float_per_layer(
        self, key: str, layers: int, default: builtins.float | None = None
    ) -> list[builtins.float]:
        """Return one number per layer, from an array or one number for all layers.

        Raises
        ------
        ModelError
            As `float` and `floats`, or the array has another length.
        """
        if not self.is_array(key):
            return [self.float(key, default)] * layers
        values = self.floats(key)
        if len(values) != layers:
            raise self._error(key, f"has {len(values)} values, the model has {layers} layers")
        return values

    def bools(self, key: str, count: int) -> list[builtins.bool]:
        """Return the first `count` values of an array of bools, or of numbers as bools.

        Raises
        ------
        ModelError
            The key is missing, or the value is not such an array.
        """
        values = self._numbers(key, "biu", "an array of bools").astype(np.bool).tolist()
        if len(values) < count:
            raise self._error(key, f"has {len(values)} values, the model has {count} layers")
        return values[:count]

    def uint_per_layer(self, key: str, layers: int, default: int | None = None) -> list[int]:
        """Return one unsigned integer per layer, from an array or one number for all layers.

        Raises
        ------
        ModelError
            As `uint`, or the array has another length, or `layers` is too large.
        """
        if layers > _MAX_LAYERS:
            raise self._error(key, f"is needed for {layers} layers, at most {_MAX_LAYERS} fit")
        if not isinstance(self._value(key, default), np.ndarray):
            return [self.uint(key, default)] * layers
        values = self.ints(key)
        if len(values) != layers:
            raise self._error(key, f"has {len(values)} values, the model has {layers} layers")
        if min(values, default=0) < 0:
            raise self._error(key, f"holds {min(values)}, needs at least 0")
        return values

    # Last, because these two names hide the builtins from annotations below them.

    def bool(self, key: str, default: bool | None = None) -> bool:
        """Return a truth value.

        Raises
        ------
        ModelError
            The key is missing and there is no default, or the value is not a bool.
        """
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong_type(key, value, "a bool")
        return value

    def float(self, key: str, default: float | None = None) -> float:
        """Return a finite number. An integer is rejected: writers store these keys as floats.

        Raises
        ------
        ModelError
            The key is missing and there is no default, or the value is not a finite float.
        """
        value = self._value(key, default)
        if not isinstance(value, float):
            raise self._wrong_type(key, value, "a float")
        if not math.isfinite(value):
            raise self._error(key, f"is {value}, needs a finite float")
        return value

    def _full(self, key: str) -> str:
        return key if key.startswith(_GLOBAL_PREFIXES) else f"{self.architecture}.{key}"

    def _value(self, key: str, default: Value | None = None) -> Value:
        value = self.metadata.get(self._full(key), default)
        if value is None:
            architecture = self.metadata.get("general.architecture", "unknown")
            raise self._error(key, f"is missing, architecture {architecture!r} needs it")
        return value

    def _numbers(self, key: str, kinds: str, wanted: str) -> npt.NDArray[np.generic]:
        value = self._value(key)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            raise self._wrong_type(key, value, wanted)
        return value

    def _wrong_type(self, key: str, value: Value, wanted: str) -> ModelError:
        return self._error(key, f"is {_kind(value)}, needs {wanted}")

    def _error(self, key: str, message: str) -> ModelError:
        return ModelError(f"{self.source}: key {self._full(key)!r} {message}")


def _kind(value: Value) -> str:
    """Describe a value's type for a message."""
    if isinstance(value, list):
        return "an array of strings"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    names = {str: "a string", bool: "a bool", int: "an integer", float: "a float"}
    return f"{names[type(value)]} ({repr(value)[:40]})"
