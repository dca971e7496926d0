"""Tokens of one call of `Context.decode`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wgpu_backend.errors import ContextError


class Entry(NamedTuple):
    """A token of a batch.

    Parameters
    ----------
    position : int or None
        None for the one behind its sequence's last.
    sequences : tuple of int
        Sequences it is of.
    wanted : bool
        Whether results are wanted for it.
    """

    token: int
    position: int | None
    sequences: tuple[int, ...]
    wanted: bool


class Batch:
    """Tokens with their positions and sequences: llama.h's ``llama_batch``.

    Belongs to one thread.

    Parameters
    ----------
    n_tokens : int
        That it holds at most.
    """

    def __init__(self, n_tokens: int = 512) -> None:
        if n_tokens < 1:
            raise ContextError(f"batch: room for {n_tokens} tokens, needs at least 1")
        self.room = n_tokens
        self.entries: list[Entry] = []

    @classmethod
    def get_one(cls, tokens: Sequence[int], sequence: int = 0) -> Batch:
        """Tokens behind the last of a sequence, with results for the last one."""
        batch = cls(max(1, len(tokens)))
        batch.add_sequence(tokens, sequence)
        return batch

    def n_tokens(self) -> int:
        """Tokens there are."""
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
            None for the position behind its sequence's last.
        logits : bool
            Whether results are wanted for it.

        Raises
        ------
        ContextError
            The batch is full, or the token is of no sequence.
        """
        if len(self.entries) >= self.room:
            raise ContextError(f"batch: has {self.room} tokens, as many as it holds")
        ids = (seq_ids,) if isinstance(seq_ids, int) else tuple(seq_ids)
        if not ids or min(ids) < 0 or len(set(ids)) < len(ids):
            raise ContextError(f"batch: sequences {ids}, needs different ones, from 0")
        self.entries.append(Entry(int(token), pos, ids, bool(logits)))

    def add_sequence(
        self,
        tokens: Sequence[int],
        seq_id: int = 0,
        logits_all: bool = False,
        pos: int | None = None,
    ) -> None:
        """Add tokens of one sequence, with results for the last one or for all.

        Parameters
        ----------
        pos : int or None
            Of the first one.
        """
        last = len(tokens) - 1
        for i, token in enumerate(tokens):
            self.add(token, None if pos is None else pos + i, seq_id, logits_all or i == last)

    def set_batch(self, tokens: Sequence[int], n_past: int, logits_all: bool = False) -> None:
        """Hold these tokens of sequence 0 alone, from position `n_past` on."""
        self.reset()
        self.add_sequence(tokens, 0, logits_all, n_past)

    def reset(self) -> None:
        """Hold no tokens."""
        self.entries.clear()

    clear = reset
