"""DRY: a penalty that grows with how much of what was said a token would repeat.

p-e-w 2024, "DRY: A modern repetition penalty that reliably prevents looping".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import OptionError
from wgpu_backend.llama.model import Model
from wgpu_backend.llama.samplers import Choice, Sampler, all_logits

BREAKERS = ("\n", ":", '"', "*")
LONGEST_BREAKER = 40  # characters, as in llama.cpp
LONGEST_TAIL = 20  # tokens, likewise
LARGEST_EXPONENT = 88.0  # e to that is a float still

Breakers = dict[int, list[tuple[int, ...]]]
"""By the token in which a breaker begins, the tokens that it goes on with."""


class Dry(Sampler):
    """Lower tokens that would go on with a repetition, by ``multiplier · base^(length - allowed)``.

    Parameters
    ----------
    model : Model
        Whose vocabulary breakers are looked up in.
    multiplier : float
        0 changes nothing.
    base : float
        Below 1 changes nothing.
    allowed_length : int
        Tokens that may be repeated without a penalty, and one more with `multiplier`.
    penalty_last_n : int
        How many tokens back to look: 0 none, -1 as many as the model was trained with.
    seq_breakers : iterable of str
        Texts that no repetition goes across.
    """

    name = "dry"

    def __init__(
        self,
        model: Model,
        multiplier: float,
        base: float = 1.75,
        allowed_length: int = 2,
        penalty_last_n: int = -1,
        seq_breakers: Iterable[str] = BREAKERS,
    ) -> None:
        if penalty_last_n < -1:
            raise OptionError(f"dry: penalty_last_n is {penalty_last_n}, needs -1 or more")
        self.multiplier, self.base = float(multiplier), float(base)
        self.allowed_length = allowed_length
        last = model.n_ctx_train() if penalty_last_n == -1 else penalty_last_n
        self._breakers = breakers_of(model, seq_breakers)
        self._seen: deque[int] = deque(maxlen=last)

    def accept(self, token: int) -> None:
        """Take in that a token was chosen, or stands in the prompt."""
        self._seen.append(token)

    def reset(self) -> None:
        """Forget tokens."""
        self._seen.clear()

    def apply(self, choice: Choice) -> Choice:
        """Lower them."""
        if self.multiplier == 0 or self.base < 1 or len(self._seen) <= self.allowed_length:
            return choice
        seen = np.array(self._seen)
        most = since_breaker(self._seen, self._breakers)
        if most < self.allowed_length:
            return choice
        logits = all_logits(self.name, choice).copy()
        for token, length in repetitions(seen, most).items():
            if length >= self.allowed_length:
                logits[token] -= np.float32(self._penalty(length - self.allowed_length))
        return replace(choice, logits=logits)

    def _penalty(self, beyond: int) -> float:
        if self.base > 1.000001:
            beyond = min(beyond, int(LARGEST_EXPONENT / np.log(self.base)))
        return self.multiplier * self.base**beyond


def repetitions(seen: NDArray[np.int64], most: int) -> dict[int, int]:
    """Tokens that stood behind what is at the end now, and the length of that, at most `most`."""
    found: dict[int, int] = {}
    ends = np.flatnonzero(seen[:-1] == seen[-1])
    length = 0
    while len(ends) and length < most:
        length += 1
        found.update(dict.fromkeys(seen[ends + 1].tolist(), length))
        ends = ends[ends >= length]
        ends = ends[seen[ends - length] == seen[len(seen) - 1 - length]]
    return found


def since_breaker(seen: Sequence[int] | deque[int], breakers: Breakers) -> int:
    """Tokens behind the last breaker, all where there is none."""
    tokens = list(seen)
    for back, token in enumerate(reversed(tokens)):
        tails = breakers.get(token, ())
        follow = tuple(tokens[len(tokens) - back :])
        whole = [len(tail) for tail in tails if follow[: len(tail)] == tail]
        if whole:
            return back - max(whole)
    return len(tokens)


def breakers_of(model: Model, texts: Iterable[str]) -> Breakers:
    """Every way in which tokens of a vocabulary spell a text.

    The first token has the text in it, or ends in its beginning; others spell the rest.
    """
    found: Breakers = {}
    pieces = [model.token_to_piece(token, special=True) for token in range(model.n_vocab())]
    for text in {each[:LONGEST_BREAKER] for each in texts if each}:
        for token, tail in _spelled(model, pieces, text.encode()):
            if tail not in found.setdefault(token, []):
                found[token].append(tail)
    return found


def _spelled(
    model: Model, pieces: Sequence[bytes], text: bytes
) -> Iterator[tuple[int, tuple[int, ...]]]:
    for token, piece in enumerate(pieces):
        if text in piece:
            yield token, ()
            continue
        for count in range(min(len(piece), len(text) - 1), 0, -1):
            if piece.endswith(text[:count]):
                rest = model.tokenize(text[count:], add_special=False)
                yield token, tuple(rest[:LONGEST_TAIL])
