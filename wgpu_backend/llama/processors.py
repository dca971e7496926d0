"""Lists of functions that change logits and end generations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.intc]
Scores = NDArray[np.single]
LogitsProcessor = Callable[[Ids, Scores], Scores]
StoppingCriteria = Callable[[Ids, Scores], bool]
Processors = LogitsProcessor | Sequence[LogitsProcessor]
"""One function, or several, one behind another."""


class LogitsProcessorList(list[LogitsProcessor]):
    """Functions that change logits, one behind another."""

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        """Logits behind the last one."""
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """Functions that say whether a generation ends."""

    def __call__(self, input_ids: Ids, logits: Scores) -> bool:
        """Whether one of them says so; all are asked."""
        said = [bool(each(input_ids, logits)) for each in self]
        return any(said)


def processor_of(given: Processors | None) -> LogitsProcessor | None:
    """One function of what may be a plain list of them."""
    return given if given is None or callable(given) else LogitsProcessorList(given)


def criterion_of(
    given: StoppingCriteria | Sequence[StoppingCriteria] | None,
) -> StoppingCriteria | None:
    """One function of what may be a plain list of them."""
    return given if given is None or callable(given) else StoppingCriteriaList(given)


class MinTokensLogitsProcessor:
    """Rules a token out until so many others were made."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: Ids, scores: Scores) -> Scores:
        """Logits, without that token while it is too early; the first call has the prompt."""
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores
