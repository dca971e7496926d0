"""Sampling options of a user, checked once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Real
from operator import index
from typing import SupportsIndex, cast

from wgpu_backend.errors import OptionError

RANDOM_SEED = -1
# llama.cpp's.
BREAKERS = ("\n", ":", '"', "*")
# Bytes, as in llama.cpp.
LONGEST_BREAKER = 40
MOST_BREAKERS = 128
# llama.cpp's names in its order, with what leaves a sampler's choice as it is, and letters.
SAMPLERS: Mapping[str, Mapping[str, float]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
}
_LETTERS = {"e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p",
            "p": "top_p", "m": "min_p", "x": "xtc", "t": "temperature"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Range:
    """The allowed values of an option, both ends included."""

    low: float
    high: float


_WHOLE = {
    "top_k": Range(0, 2**24),
    "repeat_last_n": Range(-1, 2**24),
    "seed": Range(RANDOM_SEED, 2**64 - 1),
    "dry_allowed_length": Range(0, 2**24),
    "dry_penalty_last_n": Range(-1, 2**24),
    "mirostat": Range(0, 2),
    "min_keep": Range(0, 2**24),
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
    "dry_multiplier": Range(0.0, 100.0),
    "dry_base": Range(0.0, 100.0),
    "xtc_probability": Range(0.0, 1.0),
    "xtc_threshold": Range(0.0, 1.0),
    "top_n_sigma": Range(-1.0, 1000.0),
    "dynatemp_range": Range(0.0, 100.0),
    "dynatemp_exponent": Range(0.0, 100.0),
    "mirostat_tau": Range(0.0, 100.0),
    "mirostat_eta": Range(0.0, 100.0),
}


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """The options of choosing a token; names and defaults are Ollama's, the last ones llama.cpp's.

    The first ten run on the device. The host chooses if one of the others, from `dry_multiplier`
    on, is on, or the order of samplers is not the default.

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
    dry_multiplier : float
        DRY lowers tokens that would go on with a repetition, by
        ``dry_multiplier · dry_base^(length - dry_allowed_length)``; 0 is off.
    dry_base : float
        Below 1 is off.
    dry_allowed_length : int
        Tokens that may be repeated without a penalty.
    dry_penalty_last_n : int
        How many tokens back DRY looks: 0 none, -1 all.
    dry_sequence_breakers : sequence of str
        Texts that no repetition goes across.
    xtc_probability : float
        How often XTC leaves out the most likely tokens but one; 0 is off.
    xtc_threshold : float
        Probability above which it counts tokens as such; above 0.5 is off.
    top_n_sigma : float
        Keep logits at most so many standard deviations below the largest; 0 or less keeps all.
    dynatemp_range : float
        The temperature goes by the entropy, up to so much up and down; 0 is off.
    dynatemp_exponent : float
        Of the entropy there.
    mirostat : int
        1 or 2 steers the surprise of tokens, by Mirostat of that version; then only the
        temperature applies with it. 0 is off.
    mirostat_tau : float
        Surprise that is wanted, in bits.
    mirostat_eta : float
        How fast it is steered.
    min_keep : int
        Tokens that top_p, min_p, typical_p and XTC leave at least.
    samplers : sequence of str, str or None
        Names of the samplers that apply, in their order, each once, or their letters in llama.cpp;
        others are off. None for all in llama.cpp's order: penalties, dry, top_n_sigma, top_k,
        typ_p, top_p, min_p, xtc, temperature.

    Raises
    ------
    OptionError
        A value is of the wrong kind, or outside its range.
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
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = BREAKERS
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    top_n_sigma: float = -1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    min_keep: int = 0
    samplers: Sequence[str] | str | None = None

    def __post_init__(self) -> None:
        for name, allowed in _WHOLE.items():
            value = getattr(self, name)
            if name != "seed" or value is not None:
                _within(name, whole := whole_number(name, value), allowed)
                self._set(name, whole)
        for name, allowed in _REAL.items():
            _within(name, real := _real_number(name, getattr(self, name)), allowed)
            self._set(name, real)
        if self.dry_sequence_breakers is not BREAKERS:
            self._set("dry_sequence_breakers", _breakers(self.dry_sequence_breakers))
        if self.samplers is not None:
            self._set("samplers", names := _samplers(self.samplers))
            # Samplers that are not named do nothing.
            for off in (neutral for name, neutral in SAMPLERS.items() if name not in names):
                for name, value in off.items():
                    self._set(name, value)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Return whether the most likely token is always taken."""
        return (self.temperature == 0 or self.top_k == 1) and not self.chained

    @property
    def penalised(self) -> bool:
        """Return whether tokens seen before change any logit."""
        neutral = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) == (1, 0, 0)
        return self.repeat_last_n != 0 and not neutral

    @property
    def dries(self) -> bool:
        """Return whether DRY is on."""
        on = self.dry_multiplier != 0 and self.dry_base >= 1 and self.dry_penalty_last_n != 0
        return on and not self.mirostat

    @property
    def chained(self) -> bool:
        """Return whether a chain of samplers on the host chooses."""
        if self.mirostat or self.dries or self.top_n_sigma > 0 or self.dynatemp_range > 0:
            return True
        # Above 0.5, one token at most is over the threshold, and XTC keeps one.
        excludes = self.xtc_probability > 0 and self.xtc_threshold <= 0.5
        return excludes or self.min_keep > 1 or not self._in_order

    @property
    def _in_order(self) -> bool:
        """Return whether the samplers in use apply in llama.cpp's order."""
        if self.samplers is None:
            return True
        applied = [name for name in self.samplers if self.applies(name)]
        return applied == [name for name in SAMPLERS if name in applied]

    def applies(self, name: str) -> bool:
        """Return whether a sampler of `SAMPLERS` changes anything."""
        return any(getattr(self, each) != neutral for each, neutral in SAMPLERS[name].items())


def known_options() -> list[str]:
    """Return the names of the options."""
    return [*_REAL, *_WHOLE, "dry_sequence_breakers", "samplers"]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the most similar known one, or all of them."""
    names = list(known)
    close = get_close_matches(name.lower(), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f", needs one of {', '.join(names)}"


def whole_number(name: str, value: object) -> int:
    """Convert an argument to a whole number, from Python, NumPy or a text.

    Raises
    ------
    OptionError
        The argument is not a whole number.
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
    # An int stays one: 2**64 as a float would be another number in the message.
    if type(value) is int:
        return value
    known = isinstance(value, str | Real)
    try:
        if known and value is not True and value is not False:
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise OptionError(f"{name}: {value!r}, needs a number")


def _breakers(given: object) -> tuple[str, ...]:
    """Check DRY's sequence breakers: texts that end a repetition."""
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, Sequence) or isinstance(several, bytes | bytearray):
        raise OptionError(f"dry_sequence_breakers: {_describe(given)}, needs strings")
    texts = cast("Sequence[object]", several)
    if len(texts) > MOST_BREAKERS:
        raise OptionError(
            f"dry_sequence_breakers: {len(texts)} texts, needs at most {MOST_BREAKERS}"
        )
    for each in texts:
        if not isinstance(each, str):
            raise OptionError(f"dry_sequence_breakers: {_describe(each)}, needs strings")
    # Nothing beyond that is looked at.
    return tuple(each[:LONGEST_BREAKER] for each in cast("Sequence[str]", texts))


def _samplers(given: object) -> tuple[str, ...]:
    """Return the names of samplers, from names, or letters, between semicolons."""
    several = [given] if isinstance(given, str) else given
    if not isinstance(several, Sequence) or isinstance(several, bytes | bytearray):
        raise OptionError(f"samplers: {_describe(given)}, needs names of samplers, or letters")
    names: list[str] = []
    for each in cast("Sequence[object]", several):
        if not isinstance(each, str):
            raise OptionError(f"samplers: {_describe(each)}, needs names of samplers, or letters")
        for part in each.split(";"):
            named = [part] if part in SAMPLERS else [_LETTERS.get(letter) for letter in part]
            if None in named:
                known = ", ".join(SAMPLERS)
                raise OptionError(f"samplers: {_describe(part)}, needs one of {known}, or letters")
            names += [name for name in named if name is not None]
    if twice := [name for name in SAMPLERS if names.count(name) > 1]:
        raise OptionError(f"samplers: {twice[0]} is named twice, needs each once")
    return tuple(names)


def _describe(value: object) -> str:
    return repr(value)[:40]


def _within(name: str, value: float, allowed: Range) -> None:
    if not allowed.low <= value <= allowed.high:
        raise OptionError(f"{name}: {value}, needs {allowed.low} to {allowed.high}")
