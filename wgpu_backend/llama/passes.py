"""From a batch to passes of a runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wgpu_backend.errors import ContextError
from wgpu_backend.llama.batch import Entry
from wgpu_backend.nn.batch import Work


@dataclass(slots=True)
class Text:
    """Tokens of one sequence in a batch.

    Parameters
    ----------
    places : list of int
        Where in the batch each stands; -1 where another sequence has its results.
    """

    sequence: int
    tokens: list[int] = field(default_factory=list[int])
    places: list[int] = field(default_factory=list[int])
    wanted: list[bool] = field(default_factory=list[bool])


class Pass(NamedTuple):
    """One pass.

    Parameters
    ----------
    places : list of int
        Of each row of results, the place of its token in the batch.
    sequences : list of int
        Of each row, its sequence.
    """

    works: list[Work]
    places: list[int]
    sequences: list[int]


def texts(
    entries: Sequence[Entry], length: Callable[[int], int], *, whole: bool = False
) -> list[Text]:
    """Tokens of a batch by sequence.

    Parameters
    ----------
    length : callable
        Positions that a sequence has.
    whole : bool
        Results are wanted for all, of every sequence.

    Raises
    ------
    ContextError
        A token stands elsewhere than behind the last one of its sequence.
    """
    found: dict[int, Text] = {}
    for place, entry in enumerate(entries):
        for i, sequence in enumerate(entry.sequences):
            text = found.setdefault(sequence, Text(sequence))
            due = length(sequence) + len(text.tokens)
            if entry.position not in (None, due):
                raise ContextError(
                    f"decode: token {place} is at position {entry.position} of sequence "
                    f"{sequence}, the next one is {due}; remove what stands there with seq_rm"
                )
            text.tokens.append(entry.token)
            text.places.append(-1 if i else place)
            text.wanted.append(whole or (entry.wanted and not i))
    return list(found.values())


def passes(found: Sequence[Text], most: int, most_wanted: int, *, whole: bool) -> Iterator[Pass]:
    """Cut texts into passes.

    Parameters
    ----------
    most, most_wanted : int
        Tokens and results of a pass.
    whole : bool
        Texts are not cut.
    """
    made, left, room = Pass([], [], []), most, most_wanted
    for text in found:
        at, total = 0, len(text.tokens)
        while at < total:
            if left <= 0 or room <= 0 or (whole and left < total):
                yield made
                made, left, room = Pass([], [], []), most, most_wanted
            end = at + _count(text.wanted[at:total], total if whole else left, room)
            rows = [i for i in range(at, end) if text.wanted[i]]
            outputs = [i - at for i in rows]
            made.works.append(Work(text.sequence, text.tokens[at:end], outputs))
            made.places.extend(text.places[i] for i in rows)
            made.sequences.extend(text.sequence for _ in rows)
            left, room, at = left - (end - at), room - len(rows), end
    if made.works:
        yield made


def _count(wanted: Sequence[bool], left: int, room: int) -> int:
    """Tokens at the beginning that so much room holds; at least one."""
    for i, each in enumerate(wanted[:left]):
        room -= each
        if room < 0:
            return i
    return min(len(wanted), left)
