"""Batches of tokens, and their division into the passes of a runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wgpu_backend.errors import ContextError
from wgpu_backend.nn.batch import Work


class Entry(NamedTuple):
    """A token of a batch.

    Parameters
    ----------
    position : int or None
        None for the position after its sequence's last one.
    sequences : tuple of int
        Sequences that contain the token.
    has_output : bool
        Whether the caller reads its results.
    """

    token: int
    position: int | None
    sequences: tuple[int, ...]
    has_output: bool


class Batch:
    """Tokens with their positions and sequences: llama.h's ``llama_batch``.

    Belongs to one thread.

    Parameters
    ----------
    n_tokens : int
        Most tokens it can hold.
    """

    def __init__(self, n_tokens: int = 512) -> None:
        if n_tokens < 1:
            raise ContextError(f"batch: room for {n_tokens} tokens, needs at least 1")
        self.room = n_tokens
        self.entries: list[Entry] = []

    @classmethod
    def get_one(cls, tokens: Sequence[int], sequence: int = 0) -> Batch:
        """Return a batch of the next tokens of a sequence, with results for the last token."""
        batch = cls(max(1, len(tokens)))
        batch.add_sequence(tokens, sequence)
        return batch

    def n_tokens(self) -> int:
        """Return the number of tokens."""
        return len(self.entries)

    def add(
        self,
        token: int,
        pos: int | None = None,
        seq_ids: int | Sequence[int] = 0,
        logits: bool = False,
    ) -> None:
        """Add a token.

        Parameters
        ----------
        pos : int or None
            None for the position after its sequence's last one.
        logits : bool
            Whether results are needed for it.

        Raises
        ------
        ContextError
            The batch is full, or the token belongs to no sequence.
        """
        if len(self.entries) >= self.room:
            raise ContextError(f"batch: full with {self.room} tokens; make a larger one")
        ids = (seq_ids,) if isinstance(seq_ids, int) else tuple(seq_ids)
        if not ids or min(ids) < 0 or len(set(ids)) < len(ids):
            raise ContextError(f"batch: sequences {ids}, needs distinct numbers of 0 or more")
        self.entries.append(Entry(int(token), pos, ids, bool(logits)))

    def add_sequence(
        self,
        tokens: Sequence[int],
        seq_id: int = 0,
        logits_all: bool = False,
        pos: int | None = None,
    ) -> None:
        """Add tokens of one sequence, with results for the last token or for all.

        Parameters
        ----------
        pos : int or None
            Position of the first token.
        """
        last = len(tokens) - 1
        for i, token in enumerate(tokens):
            self.add(token, None if pos is None else pos + i, seq_id, logits_all or i == last)

    def set_batch(self, tokens: Sequence[int], n_past: int, logits_all: bool = False) -> None:
        """Replace all tokens by these of sequence 0, from position `n_past` on."""
        self.reset()
        self.add_sequence(tokens, 0, logits_all, n_past)

    def reset(self) -> None:
        """Remove all tokens."""
        self.entries.clear()

    # After common_batch_clear of llama.cpp's programs.
    clear = reset


@dataclass(slots=True)
class SequenceTokens:
    """The tokens of one sequence in a batch.

    Parameters
    ----------
    places : list of int
        Place of each token in the batch; -1 if its results belong to another sequence.
    has_output : list of bool
        Whether the caller reads the results of each token.
    """

    sequence: int
    tokens: list[int] = field(default_factory=list[int])
    places: list[int] = field(default_factory=list[int])
    has_output: list[bool] = field(default_factory=list[bool])


class Pass(NamedTuple):
    """A forward pass of a runner.

    Parameters
    ----------
    works : list of Work
        Tokens of each sequence.
    places : list of int
        Place in the batch of each row of results.
    sequences : list of int
        Sequence of each row of results.
    """

    works: list[Work]
    places: list[int]
    sequences: list[int]


def group_by_sequence(
    entries: Sequence[Entry], length: Callable[[int], int], *, all_outputs: bool = False
) -> list[SequenceTokens]:
    """Return the tokens of a batch by sequence.

    Parameters
    ----------
    length : callable
        Returns the positions that a sequence has already.
    all_outputs : bool
        Whether every token of every sequence has results, as pooling requires.

    Raises
    ------
    ContextError
        A token is not at the next position of its sequence.
    """
    found: dict[int, SequenceTokens] = {}
    for place, entry in enumerate(entries):
        for i, sequence in enumerate(entry.sequences):
            text = found.setdefault(sequence, SequenceTokens(sequence))
            due = length(sequence) + len(text.tokens)
            if entry.position not in (None, due):
                raise ContextError(
                    f"decode: token {place} is at position {entry.position} of sequence "
                    f"{sequence}, the next one is {due}; remove what stands there with seq_rm"
                )
            text.tokens.append(entry.token)
            # A token of several sequences is computed in each of them. The batch has one row of
            # results for it, which is the first sequence's.
            text.places.append(-1 if i else place)
            text.has_output.append(all_outputs or (entry.has_output and not i))
    return list(found.values())


def split_into_passes(
    texts: Sequence[SequenceTokens], most_tokens: int, most_outputs: int, *, whole: bool
) -> Iterator[Pass]:
    """Yield the passes that compute the tokens of all sequences.

    Parameters
    ----------
    most_tokens, most_outputs : int
        Most tokens and rows of results of a pass.
    whole : bool
        Do not split a sequence, since its tokens attend to later ones.
    """
    made, left, room = Pass([], [], []), most_tokens, most_outputs
    for text in texts:
        at, total = 0, len(text.tokens)
        while at < total:
            if left <= 0 or room <= 0 or (whole and left < total):
                yield made
                made, left, room = Pass([], [], []), most_tokens, most_outputs
            end = at + _count_fitting(text.has_output[at:total], total if whole else left, room)
            rows = [i for i in range(at, end) if text.has_output[i]]
            outputs = [i - at for i in rows]
            made.works.append(Work(text.sequence, text.tokens[at:end], outputs))
            made.places.extend(text.places[i] for i in rows)
            made.sequences.extend(text.sequence for _ in rows)
            left, room, at = left - (end - at), room - len(rows), end
    if made.works:
        yield made


def _count_fitting(has_output: Sequence[bool], left: int, room: int) -> int:
    """Return how many of the first tokens fit: at most `left`, with at most `room` outputs."""
    for i, each in enumerate(has_output[:left]):
        room -= each
        if room < 0:
            return i
    return min(len(has_output), left)
