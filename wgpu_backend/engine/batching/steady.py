"""Fixed batch shapes for deterministic engines."""

from __future__ import annotations

from dataclasses import dataclass

from wgpu_backend.engine.runner import SHORTEST, bucket
from wgpu_backend.nn.batch import BatchShape
from wgpu_backend.nn.kvcache.cache import Cache


@dataclass(frozen=True, slots=True)
class SteadyShapes:
    """The fixed shapes of passes, so that a token's bits do not depend on the rest of the batch.

    Parameters
    ----------
    prompts, answers : BatchShape
        Shape of all prompt passes, and of all decode steps.
    judged : BatchShape
        Shape of prompt passes with logits of every token, whose cache is not shared.
    """

    prompts: BatchShape
    answers: BatchShape
    judged: BatchShape

    @classmethod
    def of(
        cls, cache: Cache, num_ctx: int, budget: int, slots: int, guessed: int, judged: int
    ) -> SteadyShapes:
        """Compute the shapes for a number of slots.

        Parameters
        ----------
        num_ctx : int
            Positions in a context.
        budget : int
            Most tokens of a prompt pass.
        guessed : int
            Most draft tokens of each answer.
        judged : int
            Most tokens of a pass with logits of every token.
        """
        room = bucket(num_ctx, SHORTEST)
        rows, choices = bucket(budget), bucket(slots)
        outputs = 2 * choices if rows == choices > 1 else choices
        columns, whole = bucket(slots * (1 + guessed)), bucket(judged)
        return cls(
            BatchShape(rows, outputs, choices, cache.reach(room, rows)),
            BatchShape(columns, columns, choices, cache.reach(room, columns)),
            BatchShape(whole, whole, choices, cache.reach(room, whole)),
        )
