"""What a template is given: plain data, measured once.

A template sees copies of mappings, lists, texts and numbers and nothing else, so no method of an
object from outside is in its reach, and nothing it is given can change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from wgpu_backend.errors import TemplateError
from wgpu_backend.text.chat_template.budget import Budget

Value = Any
"""Plain data."""

_REASONING = ("reasoning_content", "thinking", "reasoning")


def adopted(budget: Budget, name: str, value: object) -> Value:
    """Copy a value as plain data, and tell the budget how large its containers are.

    Raises
    ------
    TemplateError
        When there is something else in it.
    """
    if value is None or isinstance(value, bool):
        return value
    for plain in (str, int, float):  # of subclasses, such as enums, the value alone
        if isinstance(value, plain):
            return plain(value) if type(value) is not plain else value
    copy = _container(budget, name, value)
    budget.known[id(copy)] = budget.measure(copy)
    return copy


def _container(budget: Budget, name: str, value: object) -> Value:
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {
            adopted(budget, name, key): adopted(budget, f"{name}.{key!s:.40}", item)
            for key, item in items
        }
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        copies = [adopted(budget, f"{name}[{i}]", item) for i, item in enumerate(items)]
        return tuple(copies) if isinstance(value, tuple) else copies
    raise TemplateError(
        f"chat template: {name} is of type {type(value).__name__}, "
        "needs text, numbers, lists and mappings"
    )


def as_in_transformers(message: object) -> object:
    """A message as ``apply_chat_template`` hands it on.

    What is None is left out: templates ask whether there is a ``content`` or ``tool_calls``. The
    reasoning goes under the names that templates read, whichever of them it came with.
    """
    if not isinstance(message, Mapping):
        return message
    items = cast("Mapping[str, object]", message).items()
    there = {key: value for key, value in items if value is not None}
    reasoning = next((there[name] for name in _REASONING if name in there), None)
    if reasoning is None:
        return there
    return {"thinking": reasoning, **there, "reasoning_content": reasoning}


def with_content(message: object, nothing: str | None) -> object:
    """A message as templates get it, with this content where it was given with None.

    Templates such as DeepSeek R1's ask whether it is none, and Qwen3's take it for a text.
    """
    said = as_in_transformers(message)
    if not isinstance(message, Mapping) or "content" not in message:
        return said
    return {"content": nothing, **cast("Mapping[str, object]", said)}
