"""Strength of an adapter where its file's header tells it, as diffusers 0.34 and later write it.

The header's key ``lora_adapter_metadata`` is JSON: peft's settings of each component, under names
such as ``transformer.lora_alpha``. The strength of a module is its alpha over its rank, or over the
rank's root (Kalajdzievski 2023, "rsLoRA").
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from wgpu_backend.errors import ModelError

_KEY = "lora_adapter_metadata"
_ALPHA = 8  # of a peft config that does not say
_NAMES = ("lora_alpha", "alpha_pattern", "use_rslora")
# A pattern is an expression of a file, so only what takes little time is matched.
_MAX_PATTERN, _MAX_REPEATS = 400, 3


@dataclass(frozen=True, slots=True)
class Strengths:
    """What a header says.

    Parameters
    ----------
    path : path
        The file, as messages name it.
    settings : mapping
        The JSON object; empty where there is none.
    """

    path: str | Path
    settings: Mapping[str, object]

    @classmethod
    def of(cls, path: str | Path, metadata: Mapping[str, str]) -> Strengths:
        """Read a header's texts.

        Raises
        ------
        ModelError
            The settings are no JSON object.
        """
        try:
            found: Any = json.loads(metadata.get(_KEY) or "{}")
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path}: {_KEY}: {error}") from None
        if not isinstance(found, dict):
            raise ModelError(f"{path}: {_KEY} is {type(found).__name__}, needs a JSON object")
        return cls(path, cast("dict[str, object]", found))

    def of_module(self, component: str, module: str, rank: int) -> float:
        """What a product is multiplied by.

        Parameters
        ----------
        component : str
            ``unet``, ``transformer``, ``text_encoder`` …
        module : str
            Name of the module there, with dots.
        rank : int

        Raises
        ------
        ModelError
            A value is of the wrong kind.
        """
        given = self._settings_of(component)
        if not given:
            return 1.0
        alpha = given.get("lora_alpha", _ALPHA)
        patterns: object = given.get("alpha_pattern") or dict[str, object]()
        if not isinstance(patterns, Mapping):
            raise self._wrong(component, "alpha_pattern", patterns, "a JSON object")
        for pattern, own in cast("Mapping[str, object]", patterns).items():
            if self._fits(component, pattern, module):
                alpha = own
                break
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not _is_finite(alpha):
            raise self._wrong(component, "lora_alpha", alpha, "a number")
        stabilised = given.get("use_rslora") or False
        if not isinstance(stabilised, bool):
            raise self._wrong(component, "use_rslora", stabilised, "true or false")
        return float(alpha) / (math.sqrt(rank) if stabilised else rank)

    def _settings_of(self, component: str) -> dict[str, object]:
        """Settings of a component, or those that are of no component by name."""
        prefixed = {name: f"{component}." + name for name in _NAMES}
        if any(key.startswith(f"{component}.") for key in self.settings):
            return {"of": component} | {
                name: self.settings[key] for name, key in prefixed.items() if key in self.settings
            }
        return {name: self.settings[name] for name in _NAMES if name in self.settings}

    def _fits(self, component: str, pattern: str, module: str) -> bool:
        """Whether a pattern is of a module: all of its name, or its end from a dot on; as peft."""
        if module == pattern or module.endswith(f".{pattern}"):
            return True
        if re.fullmatch(r"[\w.\-]*", pattern):
            return False
        repeats = len(re.findall(r"(?<!\\)[*+{]", pattern))
        told = f"at most {_MAX_REPEATS} repeats, none of a group, in {_MAX_PATTERN} characters"
        if len(pattern) > _MAX_PATTERN or repeats > _MAX_REPEATS or re.search(r"\)[*+{]", pattern):
            raise self._wrong(component, "alpha_pattern", pattern[:80], told)
        try:
            return re.match(rf"(.*\.)?({pattern})$", module) is not None
        except re.error as error:
            raise self._wrong(
                component, "alpha_pattern", pattern, f"an expression: {error}"
            ) from None

    def _wrong(self, component: str, name: str, value: object, needed: str) -> ModelError:
        return ModelError(
            f"{self.path}: {_KEY}: {component}.{name} is {str(value)[:80]!r}, needs {needed}"
        )


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
