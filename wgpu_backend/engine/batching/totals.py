"""Counters of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from wgpu_backend.engine.batching.completion import Completion
from wgpu_backend.engine.batching.results import EngineStatus, SlotStatus


@dataclass(slots=True)
class Totals:
    """The number of requests, and sums over choices that have ended."""

    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    guessed_tokens: int = 0
    right_guesses: int = 0
    prompt_seconds: float = 0.0
    seconds: float = 0.0
    longest: int = 0
    drafts: int = 0
    busy: int = 0

    def add(self, gone: Sequence[Completion]) -> None:
        """Add choices that have ended."""
        for each in gone:
            self.finished += each.outcome == "finished"
            self.cancelled += each.outcome == "cancelled"
            self.failed += each.outcome == "failed"
            self.prompt_tokens += len(each.ticket.tokens)
            self.cached_tokens += each.cached
            self.completion_tokens += each.made
            self.guessed_tokens += each.guesses
            self.right_guesses += each.right_guesses
            self.prompt_seconds += each.usage.prompt_seconds
            self.seconds += each.usage.seconds
            self.longest = max(self.longest, len(each.tokens))
            self.drafts += each.drafts

    def status(
        self,
        slots: Sequence[SlotStatus | None],
        queued: int,
        kept: tuple[int, int],
        steps: int,
    ) -> EngineStatus:
        """Combine the counters with the current state; see `EngineStatus`."""
        return EngineStatus(tuple(slots), queued, *kept, steps, *astuple(self))
