"""The sampling of Whisper's tokens: timestamp rules, temperatures, and retries.

Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", §4.5.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.speech.tokens import SpeechTokens

F32s = NDArray[np.float32]
# The first timestamp is at most 1 second, in steps of 20 ms.
LATEST_FIRST = 50


@dataclass(frozen=True, slots=True)
class Decoded:
    """The decoded text of a window of sound.

    Parameters
    ----------
    tokens : list of int
        Tokens of text and timestamps, without the end.
    avg_logprob : float
        Mean of the log-probabilities of the tokens and the end.
    no_speech_prob : float
        Probability that there is no speech.
    temperature : float
        Temperature that it was sampled with.
    compression_ratio : float
        Bytes of the text divided by its bytes after zlib: large for repetitions.
    """

    tokens: list[int]
    avg_logprob: float
    no_speech_prob: float
    temperature: float
    compression_ratio: float


def mask(logits: F32s, chosen: Sequence[int], tokens: SpeechTokens, *, timestamps: bool) -> F32s:
    """Return logits with minus infinity for tokens that may not come next.

    Timestamps come in pairs, the end of a segment and the start of the next; they do not decrease,
    and the text between two has at least one token. A text begins with one of its first second.
    If all timestamps together are more probable than every other token, one of them follows.

    Parameters
    ----------
    logits : (vocabulary,), f32
    chosen : sequence of int
        Tokens of the text so far.
    timestamps : bool
        Whether the text has timestamps.
    """
    y, first = logits.astype(np.float32), tokens.timestamp
    y[tokens.suppressed] = -np.inf
    if not chosen:
        y[tokens.not_first] = -np.inf
    if not timestamps:
        return y
    y[tokens.no_timestamps] = -np.inf
    closing = len(chosen) > 0 and chosen[-1] >= first
    if closing and (len(chosen) < 2 or chosen[-2] >= first):
        # The pair is complete, or it is the start of the text.
        y[first:] = -np.inf
    elif closing:
        y[: tokens.end] = -np.inf
    stamps = [token for token in chosen if token >= first]
    if stamps:
        # The second of a pair may be equal; a segment lasts at least one step.
        alone = closing and not (len(chosen) < 2 or chosen[-2] >= first)
        y[first : stamps[-1] + (0 if alone else 1)] = -np.inf
    # A text begins with a timestamp.
    if not chosen:
        y[:first] = -np.inf
        y[first + LATEST_FIRST + 1 :] = -np.inf
    # Summed, since the probability of a time is spread over several timestamps.
    total = log_sum(y[first:])
    if total > y[:first].max():
        y[:first] = -np.inf
    return y


def log_sum(y: F32s) -> float:
    """Return ``log(sum(exp(y)))``, without overflow."""
    top = float(y.max())
    return top if not np.isfinite(top) else top + float(np.log(np.exp(y - top).sum(dtype=float)))


def choose(y: F32s, temperature: float, generator: np.random.Generator) -> int:
    """Return the most probable token, or sample one if the temperature is above 0."""
    if temperature == 0:
        return int(y.argmax())
    shares = np.exp((y - y.max()) / np.float32(temperature)).astype(float)
    return int(generator.choice(len(y), p=shares / shares.sum()))


def compression_ratio(text: str) -> float:
    """Return a text's bytes divided by its bytes after zlib."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits beyond which a window is decoded again at a higher temperature; None for no limit.

    Parameters
    ----------
    compression_ratio : float or None
        Above it a text repeats itself.
    logprob : float or None
        Below this mean of log-probabilities a text is too uncertain.
    no_speech : float or None
        Above this probability a window is silent, unless its text is above `logprob`.
    """

    compression_ratio: float | None = 2.4
    logprob: float | None = -1.0
    no_speech: float | None = 0.6

    def is_silent(self, found: Decoded) -> bool:
        """Return whether a window has no speech."""
        if self.no_speech is None or found.no_speech_prob <= self.no_speech:
            return False
        return self.logprob is None or found.avg_logprob <= self.logprob

    def fails(self, found: Decoded) -> bool:
        """Return whether a window should be decoded again."""
        if self.is_silent(found):
            return False
        repeats = (
            self.compression_ratio is not None and found.compression_ratio > self.compression_ratio
        )
        return repeats or (self.logprob is not None and found.avg_logprob < self.logprob)


def decode_with_fallback(
    decode: Callable[[float], Decoded], temperatures: Sequence[float], thresholds: Thresholds
) -> Decoded:
    """Decode at rising temperatures until a text is good enough; return the last one if none is."""
    found = decode(temperatures[0])
    for temperature in temperatures[1:]:
        if not thresholds.fails(found):
            break
        found = decode(temperature)
    return found
