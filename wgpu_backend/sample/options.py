"""What a user may ask of the sampler, checked once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Real
from operator import index
from typing import SupportsIndex, cast

from wgpu_backend.errors import OptionError

RANDOM_SEED = -1


@dataclass(frozen=True, slots=True)
class Range:
    """Values an option may have, both ends included."""

    low: float
    high: float


_WHOLE = {
    "top_k": Range(0, 2**24),
    "repeat_last_n": Range(-1, 2**24),
    "seed": Range(RANDOM_SEED, 2**64 - 1),
}
# The ends are wide of all use, and narrow enough that no product with a sane logit overflows.
_REAL = {
    "temperature": Range(0.0, 100.0),
    "top_p": Range(0.0, 1.0),
    "min_p": Range(0.0, 1.0),
    "typical_p": Range(0.0, 1.0),
    "repeat_penalty": Range(0.01, 100.0),
    "presence_penalty": Range(-100.0, 100.0),
    "frequency_penalty": Range(-100.0, 100.0),
}


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How to choose a token; names and defaults are Ollama's.

    Numbers may be NumPy's, or texts such as ``"0.5"``.

    Parameters
    ----------
    temperature : float
        Logits are divided by it; 0 always takes the most likely token.
    top_k : int
        Keep this many of the most likely tokens; 0 keeps all.
    top_p : float
        Keep the most likely tokens that together reach this probability; 1 keeps all.
    min_p : float
        Keep tokens at least this probable, relative to the most likely one; 0 keeps all.
    typical_p : float
        Keep the tokens whose surprise is closest to the expected one, until together they exceed
        this probability; 1 keeps all.
    repeat_penalty : float
        Logits of tokens seen lately are divided by it where positive, multiplied where negative.
    repeat_last_n : int
        How many tokens back the three penalties look: 0 none, -1 all.
    presence_penalty : float
        Subtracted from the logit of every token seen.
    frequency_penalty : float
        Subtracted once for each time a token was seen.
    seed : int or None
        Of the random numbers; -1 or None draws one.

    Raises
    ------
    OptionError
        A value is not a number, or outside its range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in _WHOLE.items():
            value = getattr(self, name)
            if name != "seed" or value is not None:
                _within(name, whole := whole_number(name, value), allowed)
                object.__setattr__(self, name, whole)
        for name, allowed in _REAL.items():
            _within(name, real := _real_number(name, getattr(self, name)), allowed)
            object.__setattr__(self, name, real)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """Whether tokens seen before change any logit."""
        neutral = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) == (1, 0, 0)
        return self.repeat_last_n != 0 and not neutral


def known_options() -> list[str]:
    """Names of the options."""
    return [*_REAL, *_WHOLE]


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say of an unknown name: the known one that is most like it, or all there are."""
    names = list(known)
    close = get_close_matches(name.lower(), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def whole_number(name: str, value: object) -> int:
    """Whole number of an argument, as Python, NumPy or a text has it.

    Raises
    ------
    OptionError
        It is none.
    """
    try:
        if isinstance(value, str) or (isinstance(value, float) and value.is_integer()):
            return int(value)
        if not isinstance(value, bool):
            return index(cast("SupportsIndex", value))
    except (TypeError, ValueError):
        pass
    raise OptionError(f"{name}: {value!r}, needs a whole number")


def _real_number(name: str, value: object) -> float:
    if type(value) is int:
        return value
    known = isinstance(value, str | Real)
    try:
        if known and value is not True and value is not False:
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise OptionError(f"{name}: {value!r}, needs a number")


def _within(name: str, value: float, allowed: Range) -> None:
    if not allowed.low <= value <= allowed.high:
        raise OptionError(f"{name}: {value}, needs {allowed.low} to {allowed.high}")
