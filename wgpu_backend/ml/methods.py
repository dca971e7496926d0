"""Ops as methods of a Tensor: functions with a signature that `help` and editors can show."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_TYPES = {"Node": "Tensor", "Launch": "Tensor"}  # as those see them who call


def function_of(op: Callable[..., Any], owner: type, name: str) -> Callable[..., Any]:
    """Return a plain function that calls an op with the tensor as its first operand.

    Python binds it without any code of ours, as graphs call thousands.

    Parameters
    ----------
    owner : type
        Class that it becomes a method of, by this name.
    """

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return op(self, *args, **kwargs)

    first, signature = _signature(op)
    call.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    call.__name__, call.__qualname__ = name, f"{owner.__qualname__}.{name}"
    call.__module__ = owner.__module__
    call.__doc__ = f"{inspect.getdoc(op) or ''}\n\nThe tensor itself is `{first}`."
    return call


def _signature(op: Callable[..., Any]) -> tuple[str, inspect.Signature]:
    """Return the name of the op's first operand, and its signature with `self` in that place."""
    found = inspect.signature(op)
    first, *rest = found.parameters.values()
    own = first.replace(name="self", annotation=first.empty)
    parameters = [p.replace(annotation=_seen(p.annotation)) for p in rest]
    seen = found.replace(parameters=[own, *parameters], return_annotation="Tensor")
    return first.name, seen


def _seen(annotation: Any) -> Any:  # noqa: ANN401
    """Replace the graph's types in an annotation by those that callers see."""
    if not isinstance(annotation, str):
        return annotation
    for inner, public in _TYPES.items():
        annotation = annotation.replace(inner, public)
    return annotation
