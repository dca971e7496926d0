"""Samplers that control surprise (Mirostat), and one that drops the likeliest tokens (XTC)."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence

from wgpu_backend.ops.sampling.host.candidates import Candidates
from wgpu_backend.ops.sampling.host.steps import Choice, Dist, Random, probabilities

# XTC draws from its own stream, so that it does not shift the draws of tokens.
_OF_XTC = 1


class MirostatV2(Dist):
    """A sampler that keeps tokens below a surprise bound, and moves the bound to a target surprise.

    Basu et al. 2021, "Mirostat", alg. 2.

    Parameters
    ----------
    seed : int
    tau : float
        Surprise that is wanted, in bits.
    eta : float
        How fast the bound moves.
    """

    name = "mirostat-v2"

    def __init__(self, seed: int, tau: float = 5.0, eta: float = 0.1) -> None:
        self.tau, self.eta = tau, eta
        super().__init__(seed)

    def reset(self) -> None:
        """Restart the random numbers and the bound."""
        super().reset()
        self.bound = 2 * self.tau

    def count_kept(self, found: Candidates) -> int:
        """Return how many of the likeliest may be chosen."""
        # log2(0) would warn; such a token is beyond any bound.
        surprise = -np.log2(np.maximum(probabilities(found), 1e-300))
        return max(1, int(np.count_nonzero(surprise <= self.bound)))

    def apply(self, choice: Choice) -> Choice:
        """Choose a token, and move the bound."""
        found = choice.sort_candidates()
        found = found.first(self.count_kept(found))
        chosen = super().apply(choice.restrict(found))
        at = int(np.flatnonzero(found.ids == chosen.token)[0])
        observed = -log2(max(float(probabilities(found)[at]), 1e-300))
        self.bound -= self.eta * (observed - self.tau)
        return chosen


class Mirostat(MirostatV2):
    """A sampler that keeps as many tokens as give a target surprise under Zipf's law.

    Basu et al. 2021, "Mirostat", alg. 1 and eq. 30.

    Parameters
    ----------
    n_vocab : int
    seed, tau, eta
        See `MirostatV2`.
    m : int
        Likeliest tokens that the exponent is estimated from.
    """

    name = "mirostat"

    def __init__(
        self,
        n_vocab: int,
        seed: int,
        tau: float = 5.0,
        eta: float = 0.1,
        m: int = 100,
    ) -> None:
        self.n_vocab, self.m = n_vocab, m
        super().__init__(seed, tau, eta)

    def count_kept(self, found: Candidates) -> int:
        """Return how many of the likeliest may be chosen."""
        p = probabilities(found.first(self.m))
        p = p[p > 0]
        if len(p) < 2:
            return 1
        ranks = np.log(np.arange(2, len(p) + 1) / np.arange(1, len(p)))
        drops = np.log(p[:-1] / p[1:])
        exponent = float(np.sum(ranks * drops) / np.sum(ranks**2))
        left = exponent - 1
        # The formula below divides by 0 at an exponent of 1: this is its limit.
        if abs(left) < 1e-9 or exponent <= 0:
            return max(1, min(len(found), int(2.0 ** min(self.bound, 60.0))))
        shrunk = 1 - float(self.n_vocab) ** -left
        count = (left * 2.0 ** min(self.bound, 500.0) / shrunk) ** (1 / exponent)
        return max(1, min(len(found), int(min(count, 1e18))))


class XTC(Random):
    """A sampler that sometimes drops all tokens above a probability but the least likely of them.

    Parameters
    ----------
    p : float
        How often, 0 to 1.
    t : float
        Probability above which tokens are likely; more than 0.5 does nothing.
    min_keep : int
        Tokens that are left at least; where there would be fewer, all stay.
    seed : int
    """

    name = "xtc"

    def __init__(self, p: float, t: float, min_keep: int, seed: int) -> None:
        self.p, self.t, self.min_keep = p, t, min_keep
        super().__init__(seed)

    def reset(self) -> None:
        """Restart the random numbers."""
        self._random = Generator(PCG64(SeedSequence((self.seed, _OF_XTC))))

    def apply(self, choice: Choice) -> Choice:
        """Drop the likeliest tokens, or leave all."""
        found = choice.sort_candidates()
        if self.p <= 0 or self.t > 0.5 or self.draw() >= self.p * 2**32:
            return choice.restrict(found)
        first = int(np.count_nonzero(probabilities(found) >= self.t)) - 1
        # One token above the threshold is no reason to drop it.
        if first < 1 or len(found) - first < self.min_keep:
            return choice.restrict(found)
        return replace(choice.restrict(Candidates(found.ids[first:], found.logits[first:])))
