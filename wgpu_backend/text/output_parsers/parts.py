"""The parts of a model's answer: text, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """A piece of reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call that the model requests.

    Parameters
    ----------
    name : str
        Name of the function.
    arguments : mapping
        JSON values by the names of the function's parameters.
    """

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])


Part = Content | Thinking | ToolCall


@dataclass(frozen=True, slots=True)
class Whole:
    """A complete answer.

    Parameters
    ----------
    content, thinking : str
        Text for the user, and reasoning.
    tool_calls : tuple of ToolCall
        Calls in the order in which they were made.
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
