"""Conversations longer than the context: the oldest exchanges are left out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wgpu_backend.engine.prompt import Message
from wgpu_backend.errors import ContextFull

PARTS = 4  # of the context: one is kept free for an answer, and as much is left out at a time


@dataclass(frozen=True, slots=True)
class Fitted:
    """Tokens of a conversation, and how many of its messages are not in them."""

    tokens: list[int]
    dropped: int


def fitted(
    messages: Sequence[Message],
    render: Callable[[Sequence[Message]], list[int]],
    room: int,
    answer: int,
) -> Fitted:
    """Tokens of as much of a conversation as the context has room for, and of an answer.

    What goes are whole exchanges, which begin with a message of the user, the oldest first; system
    messages in front of them stay, and so does what the user said last. A quarter of the context
    goes at a time, so that what is left begins alike for several turns and its cache serves again.

    Parameters
    ----------
    messages : sequence of mappings
    render : callable
        From messages to tokens.
    room : int
        Positions of the context.
    answer : int
        Most tokens of the answer; negative for as many as there is room for. No more than a quarter
        of the context is kept free for it.

    Raises
    ------
    ContextFull
        What the user said last is too long by itself.
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

    # The last is taken where even leaving out all before it does not make enough room.
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
    """Where exchanges begin, the first behind the system messages."""
    roles = [message["role"] for message in messages]
    first = next((i for i, role in enumerate(roles) if role not in ("system", "developer")), None)
    if first is None:
        return []
    return [first, *(i for i in range(first + 1, len(roles)) if roles[i] == "user")]
