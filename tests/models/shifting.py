"""A model whose cache was shifted against itself, with a sequence that never had what went.

Those two are the same only where tokens know nothing of each other. So attention gives zeros while
both are read, in every layer: keys and values are then those of a token at a position, whatever
stood in front of it, and turned keys have to be those that were made where they are now. What
follows is read with attention as it is, over both caches.
"""

from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import patch

from tests.models.running import Running
from wgpu_backend.engine.runner import Head, Work
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn import attention as nn_attention
from wgpu_backend.ops.attention.paged import attention as paged_attention
from wgpu_backend.testing import nmse


def shifted_error(
    model: Running, tokens: Sequence[int], gone: tuple[int, int], following: Sequence[int]
) -> float | None:
    """NMSE of logits of what follows; None where the model's cache cannot be shifted."""
    begin, end = gone
    for sequence in (0, 1):
        model.cache.remove(sequence)
    _unseeing(model, tokens, 0)
    if not model.cache.can_shift(0, begin, end):
        return None
    model.cache.shift(0, begin, end)
    _unseeing(model, [*tokens[:begin], *tokens[end:]], 1)
    found, wanted = (model.ask(following, sequence=sequence) for sequence in (0, 1))
    return nmse(found, wanted)


def _unseeing(model: Running, tokens: Sequence[int], sequence: int) -> None:
    """Read tokens, of which none is told of the others."""
    head = Head("unseeing", lambda _, hidden: [hidden])
    with patch.object(nn_attention, "attention", _left_out):
        model.runner.run([Work(sequence, tokens, (0,))], head, {}).wait()


def _left_out(*operands: Any, **options: Any) -> Tensor:
    """Attention that is computed, as its caches are written for it, and then left out."""
    return cast("Tensor", paged_attention(*operands, **options)).scale(factor=0.0)
