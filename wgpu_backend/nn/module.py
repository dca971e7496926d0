"""Fields of a model and the GGUF names of their weights.

A model declares what it is made of; `populate` finds the weights::

    class Layer(Module):
        attention_norm: RMSNorm = weight("attn_norm")
        query_norm: RMSNorm | None = weight("attn_q_norm")     # None where the file has none

    class Llama(Module):
        layers: list[Layer] = weight("blk")                    # blk.0, blk.1, …
        output: Linear = weight("output", alt="token_embd")    # the first name that is there

A field tagged with the empty name has its weights beside those of the module it belongs to.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from wgpu_backend.errors import ModelError
from wgpu_backend.ml.tensor import Tensor

Find = Callable[[str], Tensor | None]


@dataclass(frozen=True, slots=True)
class Tag:
    """GGUF names of a field: its own and what to take instead."""

    names: tuple[str, ...]


def weight(name: str, *, alt: str | tuple[str, ...] = ()) -> Any:  # noqa: ANN401
    """Say which weights a field is made of.

    Parameters
    ----------
    name : str
        Below the name of the enclosing module.
    alt : str or tuple of str
        Names to try when there is no such weight; they start from the root of the file.
    """
    return Tag((name, *((alt,) if isinstance(alt, str) else alt)))


class Module:
    """Something with weights; fields are declared with `weight`."""


def populate(module: Module, find: Find, prefix: str = "") -> bool:
    """Fill the tagged fields of a module with weights.

    Parameters
    ----------
    module : Module
    find : callable
        Weight by name, or None.
    prefix : str
        Name of the module in the file, with a dot at its end, or empty.

    Returns
    -------
    bool
        Whether any weight was found.

    Raises
    ------
    ModelError
        A field that may not be None found no weight.
    """
    hints = get_type_hints(type(module))
    values: dict[str, object] = {}
    # Told at the end: whether others are there decides what it means. Only their words: an error
    # kept by a frame that it knows would keep all weights, too.
    missing: list[str] = []
    for name, tag in _tags(type(module)).items():
        kind, optional = _unwrapped(hints[name])
        try:
            value = values[name] = _field(kind, tag, find, prefix)
        except ModelError as error:
            missing.append(str(error))
            continue
        if value is None and not optional:
            names = " or ".join([prefix + tag.names[0], *tag.names[1:]])
            where = f"{type(module).__name__}.{name}"
            missing.append(f"tensor {names} is missing, {where} needs it")
    if missing:
        raise ModelError(missing[0])
    for name, value in values.items():
        setattr(module, name, value)
    return any(value is not None for value in values.values())


def _tags(kind: type) -> dict[str, Tag]:
    tags: dict[str, Tag] = {}
    for base in reversed(kind.__mro__):
        tags.update({k: v for k, v in vars(base).items() if isinstance(v, Tag)})
    return tags


def _unwrapped(hint: Any) -> tuple[Any, bool]:  # noqa: ANN401
    """`X | None` as X and true."""
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [a for a in get_args(hint) if a is not type(None)]
        return kinds[0], len(kinds) < len(get_args(hint))
    return hint, False


def _field(kind: Any, tag: Tag, find: Find, prefix: str) -> Any:  # noqa: ANN401
    candidates = [prefix + tag.names[0], *tag.names[1:]]
    if get_origin(kind) is list:
        return _modules(get_args(kind)[0], find, candidates[0]) or None
    for name in candidates:
        inner = name if not tag.names[0] else f"{name}."
        value = find(name) if kind is Tensor else _module(cast("type[Module]", kind), find, inner)
        if value is not None:
            return value
    return None


def _module(kind: type[Module], find: Find, prefix: str) -> Module | None:
    """Module at a prefix, or None where none of its weights is there."""
    probe = {"any": False}

    def probing(name: str) -> Tensor | None:
        tensor = find(name)
        probe["any"] |= tensor is not None
        return tensor

    made = kind()
    try:
        populate(made, probing, prefix)
    except ModelError:
        if probe["any"]:
            raise
        return None
    return made if probe["any"] else None


def _modules(kind: type[Module], find: Find, name: str) -> list[Module]:
    made: list[Module] = []
    while (module := _module(kind, find, f"{name}.{len(made)}.")) is not None:
        made.append(module)
    return made
