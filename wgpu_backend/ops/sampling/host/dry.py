"""DRY: a penalty that grows with the length of the repetition that a token would continue.

p-e-w 2024, "DRY: A modern repetition penalty that reliably prevents looping".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.ops.sampling.host.options import LONGEST_BREAKER, SamplingOptions
from wgpu_backend.ops.sampling.host.steps import Choice, Rows, SamplerStep
from wgpu_backend.text.tokenizer import Tokenizer

# Tokens, as in llama.cpp.
LONGEST_TAIL = 20
# e to this power is still a float32.
LARGEST_EXPONENT = 88.0
LARGEST_PENALTY = 1e38
# Tokens: longer repetitions are found for all lengths at once.
FEW = 64
# Lists of breakers that are kept.
REMEMBERED = 32

Breakers = dict[int, list[tuple[int, ...]]]
"""By the token in which a breaker begins, the tokens that it goes on with."""


class Dry(SamplerStep):
    """A penalty on tokens that continue a repetition: ``multiplier · base^(length - allowed)``.

    Parameters
    ----------
    multiplier : float
        0 changes nothing.
    base : float
        Below 1 changes nothing.
    allowed_length : int
        Tokens that may be repeated without a penalty, and one more with `multiplier`.
    last_n : int
        How many tokens back to look: 0 none, -1 all.
    breakers : Breakers
        What no repetition goes across; see `Spelling.breakers`.
    """

    name = "dry"

    def __init__(
        self, multiplier: float, base: float, allowed_length: int, last_n: int, breakers: Breakers
    ) -> None:
        self.multiplier, self.base = float(multiplier), float(base)
        self.allowed_length, self._last = allowed_length, last_n
        self._breakers = breakers
        self._seen: list[int] = []

    def accept(self, token: int) -> None:
        """Record a token that was chosen, or is in the prompt."""
        self._seen.append(token)
        if self._last >= 0:
            del self._seen[: max(len(self._seen) - self._last, 0)]

    def recall(self, history: Sequence[int]) -> None:
        """Record all tokens so far."""
        begin = 0 if self._last < 0 else max(len(history) - self._last, 0)
        self._seen = list(history[begin:])

    def reset(self) -> None:
        """Forget all tokens."""
        self._seen.clear()

    def apply(self, choice: Choice) -> Choice:
        """Lower the logits of tokens that continue a repetition."""
        if self.multiplier == 0 or self.base < 1 or len(self._seen) <= max(1, self.allowed_length):
            return choice
        most = since_breaker(self._seen, self._breakers)
        # No repetition goes across a breaker, and shorter ones cost nothing.
        if most < self.allowed_length:
            return choice
        found = repetitions(np.array(self._seen), most)

        def lower(logits: Rows) -> Rows:
            changed = logits.copy()
            for token, length in found.items():
                if length >= self.allowed_length and 0 <= token < len(changed):
                    changed[token] -= np.float32(self._penalty(length - self.allowed_length))
            return changed

        return choice.replace_logits(lower)

    def _penalty(self, beyond: int) -> float:
        # llama.cpp's bound: for a base near 1 the logarithm would be about 0.
        if self.base > 1.000001:
            beyond = min(beyond, int(LARGEST_EXPONENT / np.log(self.base)))
        return min(self.multiplier * self.base**beyond, LARGEST_PENALTY)


def repetitions(seen: NDArray[np.int64], most: int) -> dict[int, int]:
    """Return the tokens that followed earlier copies of the end, with the copies' lengths."""
    found: dict[int, int] = {}
    # All earlier places of the last token at once: copies of the end must end there.
    ends = np.flatnonzero(seen[:-1] == seen[-1])
    length = 0
    while len(ends) and length < min(most, FEW):
        length += 1
        found.update(dict.fromkeys(seen[ends + 1].tolist(), length))
        # The others begin at the first token, and cannot be longer.
        ends = ends[ends >= length]
        ends = ends[seen[ends - length] == seen[len(seen) - 1 - length]]
    if len(ends) and length < most:
        lengths = _equal_to_the_beginning(seen[::-1].tolist())
        for end in ends.tolist():
            token, same = int(seen[end + 1]), min(lengths[len(seen) - 1 - end], most)
            found[token] = max(found[token], same)
    return found


def _equal_to_the_beginning(tokens: list[int]) -> list[int]:
    """Return how many tokens from each place on equal the beginning: Gusfield 1997, §1.4."""
    found = [0] * len(tokens)
    # The part that ends last, of those that equal the beginning (the Z algorithm).
    left = right = 0
    for at in range(1, len(tokens)):
        same = min(right - at, found[at - left]) if at < right else 0
        while at + same < len(tokens) and tokens[same] == tokens[at + same]:
            same += 1
        found[at] = same
        if at + same > right:
            left, right = at, at + same
    return found


def since_breaker(tokens: Sequence[int], breakers: Breakers) -> int:
    """Return how many tokens follow the last breaker; all if there is none."""
    size = len(tokens)
    for back, token in enumerate(reversed(tokens)):
        if tails := breakers.get(token):
            follow = tuple(tokens[size - back : size - back + LONGEST_TAIL])
            whole = [len(tail) for tail in tails if follow[: len(tail)] == tail]
            if whole:
                return back - max(whole)
    return size


class Spelling:
    """The spellings of texts in tokens of a vocabulary; thread-safe.

    Parameters
    ----------
    tokenizer : Tokenizer
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._remembered: dict[tuple[str, ...], Breakers] = {}

    def of(self, options: SamplingOptions) -> Breakers | None:
        """Return the breakers of options; None if DRY is off."""
        return self.breakers(tuple(options.dry_sequence_breakers)) if options.dries else None

    @cached_property
    def _pieces(self) -> list[bytes]:
        return [self._tokenizer.token_bytes(token) for token in range(self._tokenizer.vocab_size)]

    @cached_property
    def _by_end(self) -> dict[int, list[int]]:
        """Return tokens by their last byte."""
        found: dict[int, list[int]] = {}
        for token, piece in enumerate(self._pieces):
            if piece:
                found.setdefault(piece[-1], []).append(token)
        return found

    def breakers(self, texts: tuple[str, ...]) -> Breakers:
        """Return every token sequence that spells one of some texts; results are cached.

        The first token contains the text, or ends with a prefix of it; others spell the rest.
        """
        if (known := self._remembered.get(texts)) is not None:
            return known
        found: Breakers = {}
        # Half of a surrogate pair is in no token.
        for text in {each.encode("utf-8", "surrogatepass")[:LONGEST_BREAKER] for each in texts}:
            for token, tail in self._spell(text) if text else ():
                if tail not in found.setdefault(token, []):
                    found[token].append(tail)
        # Texts come from requests, so the cache must not grow without bound.
        if len(self._remembered) >= REMEMBERED:
            self._remembered.clear()
        self._remembered[texts] = found
        return found

    def _spell(self, text: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
        within = {token for token, piece in enumerate(self._pieces) if text in piece}
        yield from ((token, ()) for token in within)
        for count in range(1, len(text)):
            begun = self._by_end.get(text[count - 1], ())
            ends = [each for each in begun if self._pieces[each].endswith(text[:count])]
            if left := [each for each in ends if each not in within]:
                rest = text[count:].decode("utf-8", "replace")
                tail = tuple(self._tokenizer.encode(rest, add_special=False)[:LONGEST_TAIL])
                yield from ((token, tail) for token in left)
