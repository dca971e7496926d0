"""The steps of sampling: small functions from candidates to candidates.

Sources: top_p is Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration"; typical_p is
Meister et al. 2023, "Locally Typical Sampling", alg. 1; the penalties are Keskar et al. 2019,
"CTRL", §4.1, with negative logits multiplied instead of divided, and OpenAI's two subtractions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.ops.sampling.host.candidates import Candidates
from wgpu_backend.ops.sampling.host.sampling_params import LOG2_E, SamplingParams
from wgpu_backend.ops.sampling.host.weights import share, weights


def penalise(
    logits: NDArray[np.float32],
    history: Sequence[int] | NDArray[np.integer],
    sampling: SamplingParams,
) -> NDArray[np.float32]:
    """Lower the logits of tokens seen before.

    Parameters
    ----------
    logits : (n,)
        Float32.
    history : sequence of int
        Tokens seen; those outside the vocabulary (-1 marks an empty place) do not count.

    Returns
    -------
    (n,), float32, a copy.
    """
    seen = np.asarray(history, np.int64)
    ids, counts = np.unique(seen[(seen >= 0) & (seen < len(logits))], return_counts=True)
    presence, frequency = np.float32(sampling.presence), np.float32(sampling.frequency)
    repeat, inverse = np.float32(sampling.repeat), np.float32(sampling.inverse_repeat)
    old = logits[ids]
    penalised = logits.copy()
    with np.errstate(over="ignore"):
        # Keskar et al. 2019, "CTRL", with llama.cpp's correction for negative logits.
        scaled = old * np.where(old > 0, inverse, repeat)
        penalised[ids] = scaled - (counts.astype(np.float32) * frequency + presence)
    return penalised


def typical_p(candidates: Candidates, share_kept: float) -> Candidates:
    """Keep candidates of nearly the expected surprise, until they exceed a share of probability."""
    logits = candidates.logits.astype(np.float64)
    powers = np.exp(logits - logits[0])
    probabilities = powers / powers.sum()
    # From logits, since a probability may be 0 in f64.
    surprise = np.log(powers.sum()) - (logits - logits[0])
    possible = probabilities > 0
    expected = np.sum(probabilities[possible] * surprise[possible])
    # The nearest to the expected surprise first, of equally near ones the likelier.
    order = np.argsort(np.abs(surprise - expected), kind="stable")
    reached = np.cumsum(probabilities[order]) > share_kept
    count = int(np.argmax(reached)) + 1 if reached.any() else len(order)
    kept = np.sort(order[:count])
    return Candidates(candidates.ids[kept], candidates.logits[kept])


def top_k(candidates: Candidates, count: float) -> Candidates:
    """Keep the first `count` candidates; 0 keeps all."""
    return candidates.first(int(count)) if count else candidates


def top_p(candidates: Candidates, share_kept: float) -> Candidates:
    """Keep the first candidates that together reach a share of the probability; 1 keeps all."""
    if share_kept >= 1:
        return candidates
    reached = np.cumsum(weights(candidates.logits, float(LOG2_E)))
    # 24 bits hold a float32 share exactly enough; 8 more make it a fraction of 2^32.
    wanted = share(int(reached[-1]), int(share_kept * (1 << 24)) << 8)
    return candidates.first(int(np.searchsorted(reached, wanted)) + 1)


def min_p(candidates: Candidates, gap: float) -> Candidates:
    """Keep candidates whose logit is at most `gap` below the largest."""
    with np.errstate(over="ignore"):
        # A ratio of probabilities is a difference of logits.
        near = candidates.logits[0] - candidates.logits <= np.float32(gap)
    return candidates.first(int(np.count_nonzero(near)))


def cut(candidates: Candidates, sampling: SamplingParams) -> Candidates:
    """Cut candidates by top_k, top_p and min_p."""
    return min_p(top_p(top_k(candidates, sampling.top_k), sampling.top_p), sampling.gap)


def pick(candidates: Candidates, sampling: SamplingParams, draw: int) -> int:
    """Cut candidates by top_k, top_p and min_p, and take the one that a random number falls on.

    Parameters
    ----------
    draw : int
        Uniform in [0, 2^32).

    Returns
    -------
    int
        Token.
    """
    found = cut(candidates, sampling)
    reached = np.cumsum(weights(found.logits, sampling.sharpness))
    # Sums of whole numbers are exact, and so the same on every device.
    at = share(int(reached[-1]), draw)
    return int(found.ids[np.searchsorted(reached, at, side="right")])
