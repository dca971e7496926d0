"""Typed, checked access to config.json and similar files.

Methods take several names, since families have different names for the same setting; the first one
with a value that is not null counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from wgpu_backend.errors import ModelError


@dataclass(frozen=True, slots=True)
class Settings:
    """Keys of a JSON object.

    In every method a default of None means that one of the keys is required.

    Parameters
    ----------
    source : str
        The file, as messages name it, and the place of the object in it.
    values : Mapping
        The object.
    asked : set of str
        Keys that were looked up; `unread` lists the others.
    """

    source: str
    values: Mapping[str, Any]
    asked: set[str] = field(default_factory=set[str], compare=False)

    def __contains__(self, name: str) -> bool:
        self.asked.add(name)
        return self.values.get(name) is not None

    def unread(self) -> list[str]:
        """Return keys that have a value and were never looked up."""
        return sorted(
            name
            for name, value in self.values.items()
            if value is not None and name not in self.asked
        )

    def value(self, *names: str) -> object | None:
        """Return the value of the first of these keys, unchecked, or None."""
        # A list, so that all names are recorded as looked up.
        there = [self.values[name] for name in names if name in self]
        return there[0] if there else None

    def uint(self, *names: str, default: int | None = None) -> int:
        """Return a whole number, 0 or more.

        Raises
        ------
        ModelError
            No key is present and there is no default, or the value is not such a number.
        """
        value = self._needed(names, default)
        if type(value) is not int or not 0 <= value < 2**63:
            raise self._wrong(names, value, "a whole number")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """Return a finite number; raises like `uint`."""
        value = self._needed(names, default)
        if type(value) not in (int, float) or not math.isfinite(cast("float", value)):
            raise self._wrong(names, value, "a finite number")
        return float(cast("float", value))

    def flag(self, *names: str, default: bool | None = None) -> bool:
        """Return a truth value; raises like `uint`."""
        value = self._needed(names, default)
        if not isinstance(value, bool):
            raise self._wrong(names, value, "true or false")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        """Return a string; raises like `uint`."""
        value = self._needed(names, default)
        if not isinstance(value, str):
            raise self._wrong(names, value, "a string")
        return value

    def uints(self, *names: str, default: list[int] | None = None) -> list[int]:
        """Return a list of whole numbers; raises like `uint`."""
        items = self._items(names, default)
        if not all(type(item) is int and 0 <= item < 2**63 for item in items):
            raise self._wrong(names, items, "a list of whole numbers")
        return cast("list[int]", items)

    def numbers(self, *names: str, default: list[float] | None = None) -> list[float]:
        """Return a list of finite numbers; raises like `uint`."""
        items = self._items(names, default)
        for item in items:
            if type(item) not in (int, float) or not math.isfinite(cast("float", item)):
                raise self._wrong(names, items, "a list of finite numbers")
        return [float(item) for item in cast("list[float]", items)]

    def texts(self, *names: str, default: list[str] | None = None) -> list[str]:
        """Return a list of strings; raises like `uint`."""
        items = self._items(names, default)
        if not all(isinstance(item, str) for item in items):
            raise self._wrong(names, items, "a list of texts")
        return cast("list[str]", items)

    def section(self, name: str) -> Settings:
        """Return the object of a key; empty if the key is missing.

        Raises
        ------
        ModelError
            The value is not an object.
        """
        value = self._needed((name,), cast("dict[str, Any]", {}))
        if not isinstance(value, dict):
            raise self._wrong((name,), value, "an object")
        return Settings(f"{self.source}: {name}", cast("dict[str, Any]", value))

    def error(self, name: str, message: str) -> ModelError:
        """Create an error that names file and key."""
        return ModelError(f"{self.source}: key {name!r} {message}")

    def _items(self, names: tuple[str, ...], default: object) -> list[object]:
        value = self._needed(names, default)
        if not isinstance(value, list):
            raise self._wrong(names, value, "a list")
        return cast("list[object]", value)

    def _needed(self, names: tuple[str, ...], default: object) -> object:
        value = self.value(*names)
        value = default if value is None else value
        if value is None:
            also = f" (nor {', '.join(map(repr, names[1:]))})" if names[1:] else ""
            raise self.error(names[0], f"is missing{also}")
        return value

    def _wrong(self, names: tuple[str, ...], value: object, wanted: str) -> ModelError:
        name = next((name for name in names if name in self), names[0])
        return self.error(name, f"is {str(value)[:60]!r}, needs {wanted}")
