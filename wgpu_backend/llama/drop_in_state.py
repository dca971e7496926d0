"""States of Llama, and where they are kept between prompts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class LlamaState:
    """What `Llama.save_state` gives.

    Parameters
    ----------
    input_ids : (n_ctx,), intc
        Tokens, zeros behind them.
    scores : (tokens, vocabulary), float32
        Logits, where all are kept; else no rows.
    llama_state : bytes
        See `Context.state_seq_get_data`.
    """

    input_ids: NDArray[np.intc]
    scores: NDArray[np.single]
    n_tokens: int
    llama_state: bytes
    llama_state_size: int
    seed: int


class LlamaRAMCache:
    """States by their tokens, those that were used longest ago given up first.

    Parameters
    ----------
    capacity_bytes : int
        Of all states.
    """

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes
        self._states: OrderedDict[tuple[int, ...], LlamaState] = OrderedDict()

    @property
    def cache_size(self) -> int:
        """Bytes of all states."""
        return sum(state.llama_state_size for state in self._states.values())

    def _nearest(self, key: Sequence[int]) -> tuple[int, ...] | None:
        common = {each: shared(each, key) for each in self._states}
        best = max(common, key=lambda each: common[each], default=None)
        return best if best is not None and common[best] else None

    def __getitem__(self, key: Sequence[int]) -> LlamaState:
        """State that has most of the first tokens of `key`; KeyError where none has any."""
        found = self._nearest(key)
        if found is None:
            raise KeyError("no state begins as these tokens")
        self._states.move_to_end(found)
        return self._states[found]

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._nearest(key) is not None

    def __setitem__(self, key: Sequence[int], value: LlamaState) -> None:
        self._states[tuple(key)] = value
        self._states.move_to_end(tuple(key))
        while self._states and self.cache_size > self.capacity_bytes:
            self._states.popitem(last=False)


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that two texts begin with alike."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
