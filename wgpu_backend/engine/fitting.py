"""Truncation of conversations to the context: the oldest exchanges are left out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wgpu_backend.engine.prompt import Message
from wgpu_backend.errors import ContextFull

# A quarter of the context is kept free for the answer, and at least a quarter is left out at a
# time: the next requests then begin with the same tokens, and the KV cache is reused.
PARTS = 4


@dataclass(frozen=True, slots=True)
class Fitted:
    """The tokens of a conversation, and the number of messages left out."""

    tokens: list[int]
    dropped: int


def fitted(
    messages: Sequence[Message],
    render: Callable[[Sequence[Message]], list[int]],
    room: int,
    answer: int,
) -> Fitted:
    """Render as much of a conversation as fits the context together with an answer.

    Whole exchanges, which begin with a message of the user, are left out, the oldest first. Leading
    system messages and the user's last message stay.

    Parameters
    ----------
    render : callable
        Converts messages to tokens.
    room : int
        Positions in the context.
    answer : int
        Most tokens of the answer; negative for no limit. At most a quarter of the context is
        reserved for it.

    Raises
    ------
    ContextFull
        The user's last message alone is longer than the context.
    """
    everything = render(messages)
    part = max(room // PARTS, 1)
    excess = len(everything) - room + (part if answer < 0 else min(answer, part))
    starts = _exchanges(messages)
    if excess <= 0 or (len(starts) < 2 and len(everything) <= room):
        return Fitted(everything, 0)
    head, going = messages[: starts[0]] if starts else messages, -(-excess // part) * part

    def shortened(start: int) -> list[int]:
        return render([*head, *messages[start:]])

    # The search excludes the last exchange, which is always kept.
    count = bisect_left(
        starts[:-1], True, key=lambda start: len(everything) - len(shortened(start)) >= going
    )
    tokens = shortened(starts[count]) if count else everything
    if len(tokens) > room:
        raise ContextFull(
            f"the newest message, with the system message, takes {len(tokens)} tokens, the "
            f"context holds {room}; shorten it, or load the model with a larger num_ctx",
            len(tokens),
            room,
        )
    return Fitted(tokens, starts[count] - len(head) if count else 0)


def _exchanges(messages: Sequence[Message]) -> list[int]:
    """Return the indices at which exchanges begin, the first after the system messages."""
    roles = [message["role"] for message in messages]
    first = next((i for i, role in enumerate(roles) if role not in ("system", "developer")), None)
    if first is None:
        return []
    return [first, *(i for i in range(first + 1, len(roles)) if roles[i] == "user")]
