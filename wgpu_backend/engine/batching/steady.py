"""Shapes of an engine's passes where these are always the same, whoever is in them."""

from __future__ import annotations

from dataclasses import dataclass

from wgpu_backend.engine.runner import SHORTEST, bucket
from wgpu_backend.nn.batch import BatchShape
from wgpu_backend.nn.kvcache.cache import Cache


@dataclass(frozen=True, slots=True)
class SteadyShapes:
    """The two shapes of passes: what is computed of a token never depends on who is beside it.

    Parameters
    ----------
    prompts, answers : BatchShape
        Of all passes over prompts, and of all steps of answers.
    judged : BatchShape
        Of passes over prompts whose every token is judged; nothing of them is shared.
    """

    prompts: BatchShape
    answers: BatchShape
    judged: BatchShape

    @classmethod
    def of(
        cls, cache: Cache, num_ctx: int, budget: int, slots: int, guessed: int, judged: int
    ) -> SteadyShapes:
        """Shapes for so many slots.

        Parameters
        ----------
        cache : Cache
        num_ctx : int
            Positions of a context.
        budget : int
            Tokens of a pass over prompts.
        slots : int
        guessed : int
            Tokens guessed behind each answer at most.
        judged : int
            Tokens of a pass that judges them.
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
