"""What a model's answer is made of: text, reasoning, and calls of functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model asks to have called.

    Parameters
    ----------
    name : str
    arguments : mapping
        By the names of the function's parameters, as JSON has values.
    """

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])


Part = Content | Thinking | ToolCall


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer at its end.

    Parameters
    ----------
    content, thinking : str
    tool_calls : tuple of ToolCall
        In the order in which they were made.
    """

    content: str
    thinking: str
    tool_calls: tuple[ToolCall, ...]


def whole(parts: Iterable[Part]) -> Whole:
    """Join the parts of an answer."""
    found = list(parts)
    return Whole(
        "".join(part.text for part in found if isinstance(part, Content)),
        "".join(part.text for part in found if isinstance(part, Thinking)),
        tuple(part for part in found if isinstance(part, ToolCall)),
    )
