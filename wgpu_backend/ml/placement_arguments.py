"""Values of the options that place layers, as users and other programs write them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from typing import Literal, cast

import numpy as np

from wgpu_backend.errors import OptionError, describe
from wgpu_backend.ops.sampling.host.options import whole_number

GpuLayers = int | Literal["all", "auto"]


def parse_layers(value: object, name: str = "gpu_layers") -> GpuLayers:
    """Return a number of layers, ``all`` or ``auto``, which None stands for.

    Raises
    ------
    OptionError
        It is none of these.
    """
    if value is None:
        return "auto"
    if isinstance(value, str) and value.strip().casefold() in ("all", "auto"):
        return "all" if value.strip().casefold() == "all" else "auto"
    try:
        return whole_number(name, value)
    except OptionError:
        raise OptionError(f"{name}: {describe(value)}, needs a number, 'all' or 'auto'") from None


def parse_peer_layers(value: object, name: str) -> GpuLayers:
    """Return layers as `parse_layers`, with llama.cpp's numbers: -1 is ``auto``, -2 is ``all``.

    Raises
    ------
    OptionError
        It is none of these.
    """
    layers = parse_layers(value, name)
    if isinstance(layers, int) and layers < 0:
        return "auto" if layers == -1 else "all"
    return layers


def parse_split(value: object, name: str = "tensor_split") -> tuple[float, ...]:
    """Return the shares of devices, from numbers or a text such as ``3,1`` or ``3/1``.

    Returns
    -------
    tuple of float
        Empty for None and for an empty sequence, which stand for no split.

    Raises
    ------
    OptionError
        One is not a number from 0.
    """
    if value is None:
        return ()
    items = re.split("[,/]+", value.strip().rstrip(",/")) if isinstance(value, str) else value
    # A set has no order, and the keys of a dictionary are not its shares.
    if isinstance(items, bytes | bytearray | Set | Mapping) or not hasattr(items, "__iter__"):
        raise OptionError(f"{name}: {describe(value)}, needs a list of numbers, a share a device")
    return tuple(_parse_share(item, name) for item in cast("Iterable[object]", items))


def _parse_share(item: object, name: str) -> float:
    """Return one share of `parse_split`."""
    share = None
    if not isinstance(item, bool):
        with suppress(TypeError, ValueError, OverflowError):
            share = float(cast("float", item))
    if share is None:
        raise OptionError(f"{name}: {describe(item)}, needs numbers from 0, such as 3,1")
    if not math.isfinite(share) or share < 0:
        raise OptionError(f"{name}: {share}, needs finite numbers from 0, such as 3,1")
    return share


def parse_flag(name: str, value: object) -> bool:
    """Return a flag of Python or NumPy.

    Raises
    ------
    OptionError
        It is not one.
    """
    if isinstance(value, bool | np.bool_):
        return bool(cast("bool", value))
    raise OptionError(f"{name}: {describe(value)}, needs True or False")
