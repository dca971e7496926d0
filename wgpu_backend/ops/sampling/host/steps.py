"""Samplers of a chain, each of which narrows or reweighs the choice: ``llama_sampler_…``.

A chain of penalties, top_k, typical, top_p, min_p, temp and dist gives, for one seed, the same
tokens as `Sampler` without a chain.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, log2
from typing import Self

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray

from wgpu_backend.errors import OptionError
from wgpu_backend.ops.sampling.host.candidates import Candidates, largest
from wgpu_backend.ops.sampling.host.options import SamplingOptions
from wgpu_backend.ops.sampling.host.sampling_params import (
    EVERY_GAP,
    LOWEST_TEMPERATURE,
    make_sampling_params,
)
from wgpu_backend.ops.sampling.host.transforms import min_p, penalise, top_p, typical_p
from wgpu_backend.ops.sampling.host.weights import share, weights

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Choice:
    """The tokens that may be chosen.

    Parameters
    ----------
    logits : (vocabulary,), float32
        Until they are sorted.
    candidates : Candidates or None
        Sorted ones; `logits` are not looked at any more.
    temperature : float
        That logits are still to be divided by.
    token : int
        The chosen one; -1 until then.
    """

    logits: Rows
    candidates: Candidates | None = None
    temperature: float = 1.0
    token: int = -1

    def sort_candidates(self, count: int = 0) -> Candidates:
        """Return the `count` likeliest, 0 for all, their logits divided by the temperature."""
        found = self.candidates or largest(self.logits, count)
        found = found.first(count) if count else found
        if self.temperature == 1.0:
            return found
        heat = np.float32(self.temperature)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            divided = found.logits / heat
            # Only differences count, and none of these is too large.
            if not np.isfinite(divided[0]):
                gaps = found.logits - found.logits[0]
                divided = np.where(gaps == 0, np.float32(0), gaps / heat)
        return Candidates(found.ids, divided.astype("f4"))

    def restrict(self, candidates: Candidates) -> Choice:
        """Return this choice restricted to some candidates."""
        return replace(self, candidates=candidates, temperature=1.0)

    def replace_logits(self, change: Callable[[Rows], Rows]) -> Choice:
        """Return this choice with other logits for the tokens that may still be chosen.

        Parameters
        ----------
        change : callable
            From the logits of all tokens to new ones; those that are out have minus infinity.
        """
        if self.candidates is None and self.temperature == 1.0:
            return replace(self, logits=change(self.logits))
        found = self.sort_candidates()
        ids, logits = found.ids, np.full_like(self.logits, -np.inf)
        # Tokens that were dropped before stay at -inf.
        logits[ids] = found.logits
        logits = change(logits)[ids]
        # Ties by id, as everywhere.
        order = np.lexsort((ids, -logits))
        return self.restrict(Candidates(ids[order], logits[order]))


class SamplerStep:
    """A step of a chain.

    An instance belongs to one thread, and to one sequence if it remembers tokens.
    """

    name = "custom"

    def apply(self, choice: Choice) -> Choice:
        """Return the shader choice after this step."""
        raise NotImplementedError

    def accept(self, token: int) -> None:
        """Record a token that was chosen."""

    def recall(self, history: Sequence[int]) -> None:
        """Replace the recorded tokens by all tokens so far, the oldest first."""

    def reset(self) -> None:
        """Forget tokens, and restart the random numbers."""

    def clone(self) -> Self:
        """Return a copy in the same state."""
        return copy.deepcopy(self)


class Greedy(SamplerStep):
    """A step that chooses the likeliest token."""

    name = "greedy"

    def apply(self, choice: Choice) -> Choice:
        """Choose the likeliest token; of equal ones the first."""
        if choice.candidates is not None:
            return replace(choice, token=int(choice.candidates.ids[0]))
        return replace(choice, token=int(np.argmax(choice.logits)))


class Random(SamplerStep):
    """A step that draws random numbers.

    Parameters
    ----------
    seed : int
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.reset()

    def reset(self) -> None:
        """Restart the random numbers."""
        self._random = Generator(PCG64(self.seed))

    def draw(self) -> int:
        """Take the next random number, uniform in [0, 2^32)."""
        return int(self._random.integers(1 << 32, dtype=np.uint32))


class Dist(Random):
    """A step that chooses by probability."""

    name = "dist"

    def apply(self, choice: Choice) -> Choice:
        """Choose the token that the next random number falls on."""
        pending = max(choice.temperature, LOWEST_TEMPERATURE)
        # The temperature goes into the exponent of 2, rounded once, as on devices.
        found = replace(choice, temperature=1.0).sort_candidates()
        reached = np.cumsum(weights(found.logits, float(np.float32(log2(np.e) / pending))))
        at = share(int(reached[-1]), self.draw())
        token = found.ids[np.searchsorted(reached, at, side="right")]
        return replace(choice, token=int(token))


class TopK(SamplerStep):
    """A step that keeps the likeliest tokens.

    Parameters
    ----------
    k : int
        How many; 0 or less keeps all.
    """

    name = "top-k"

    def __init__(self, k: int) -> None:
        self.k = k

    def apply(self, choice: Choice) -> Choice:
        """Drop the tokens that this step does not keep."""
        return choice.restrict(choice.sort_candidates(max(self.k, 0)))


class _Share(SamplerStep):
    """A step with a probability and a least number of tokens to keep.

    Parameters
    ----------
    p : float
        From 0 to 1.
    min_keep : int
    """

    def __init__(self, p: float, min_keep: int = 1) -> None:
        self.p = _within(self.name, p, 0.0, float("inf"))
        self.min_keep = min_keep

    def cut(self, found: Candidates) -> Candidates:
        """Return the candidates that remain after a cut by the step's probability."""
        raise NotImplementedError

    def apply(self, choice: Choice) -> Choice:
        """Drop other candidates, but keep at least `min_keep`."""
        found = choice.sort_candidates()
        kept = self.cut(found)
        return choice.restrict(kept if len(kept) >= self.min_keep else found.first(self.min_keep))


class TopP(_Share):
    """A step that keeps the likeliest tokens that together reach a probability; 1 keeps all."""

    name = "top-p"

    def cut(self, found: Candidates) -> Candidates:
        """Cut candidates by top_p (Holtzman et al. 2020)."""
        return top_p(found, float(np.float32(self.p)))


class MinP(_Share):
    """A step that keeps tokens of a least probability relative to the likeliest; 0 keeps all."""

    name = "min-p"

    def cut(self, found: Candidates) -> Candidates:
        """Drop candidates whose logit is too far below the largest."""
        return min_p(found, float(np.float32(-log(self.p) if self.p > 0 else EVERY_GAP)))


class Typical(_Share):
    """A step that keeps tokens of nearly the expected surprise; 1 keeps all."""

    name = "typical"

    def cut(self, found: Candidates) -> Candidates:
        """Cut candidates by typicality (Meister et al. 2023, alg. 1)."""
        return typical_p(found, self.p) if self.p < 1 else found


class TopNSigma(SamplerStep):
    """A step that keeps logits within some standard deviations of the largest.

    Parameters
    ----------
    n : float
        0 or less keeps all. Tang et al. 2024, "Top-nσ".
    """

    name = "top-n-sigma"

    def __init__(self, n: float) -> None:
        self.n = n

    def apply(self, choice: Choice) -> Choice:
        """Drop the tokens that this step does not keep."""
        found = choice.sort_candidates()
        if self.n <= 0 or len(found) < 2:
            return choice.restrict(found)
        # Tokens that are ruled out have -inf, and would make the deviation NaN.
        finite = found.logits[np.isfinite(found.logits)]
        least = finite[0] - self.n * finite.std(dtype=np.float64)
        return choice.restrict(found.first(int(np.count_nonzero(found.logits >= least))))


class Temp(SamplerStep):
    """A step that divides logits by a temperature; 0 or less keeps the likeliest only.

    Parameters
    ----------
    t : float
    """

    name = "temp"

    def __init__(self, t: float) -> None:
        self.t = t

    def apply(self, choice: Choice) -> Choice:
        """Set the temperature of the choice."""
        if self.t <= 0:
            return choice.restrict(choice.sort_candidates(1))
        # Pending: `Dist` divides by it in one rounding, as devices do.
        return replace(choice, temperature=choice.temperature * self.t)


class TempExt(Temp):
    """A temperature by the entropy: Zhu et al. 2024, "Entropy-based dynamic temperature".

    Parameters
    ----------
    t : float
    delta : float
        The temperature is ``t ± delta``; 0 for `t` alone.
    exponent : float
        Of the entropy, as a share of the largest that there could be.
    """

    name = "temp-ext"

    def __init__(self, t: float, delta: float, exponent: float) -> None:
        super().__init__(t)
        self.delta, self.exponent = delta, exponent

    def apply(self, choice: Choice) -> Choice:
        """Set the temperature of the choice."""
        found = choice.sort_candidates()
        if self.delta <= 0 or len(found) < 2:
            return super().apply(choice.restrict(found))
        p = probabilities(found)
        # As a share of the largest possible, log n.
        entropy = -float(np.sum(p[p > 0] * np.log(p[p > 0]))) / log(len(found))
        low, high = max(0.0, self.t - self.delta), self.t + self.delta
        heat = low + (high - low) * entropy**self.exponent
        return Temp(heat).apply(choice.restrict(found))


class LogitBias(SamplerStep):
    """A step that adds numbers to logits of tokens; minus infinity rules a token out.

    Parameters
    ----------
    biases : mapping of int to float
    """

    name = "logit-bias"

    def __init__(self, biases: Mapping[int, float]) -> None:
        self.biases = {int(token): float(bias) for token, bias in biases.items()}

    def apply(self, choice: Choice) -> Choice:
        """Add the biases."""
        rows = len(choice.logits)
        for token in self.biases:
            if not 0 <= token < rows:
                raise OptionError(f"logit_bias: token {token}, the vocabulary has {rows}")

        def add_biases(logits: Rows) -> Rows:
            changed = logits.copy()
            changed[[*self.biases]] += np.array([*self.biases.values()], np.float32)
            return changed

        return choice.replace_logits(add_biases)


class Penalties(SamplerStep):
    """A step that lowers the logits of tokens seen lately.

    Parameters
    ----------
    last_n : int
        How many tokens back to look: 0 none, -1 all.
    repeat, frequency, presence : float
        See `SamplingOptions`.
    """

    name = "penalties"

    def __init__(
        self, last_n: int = 64, repeat: float = 1.0, frequency: float = 0.0, presence: float = 0.0
    ) -> None:
        self._options = SamplingOptions(
            repeat_last_n=last_n, repeat_penalty=repeat,
            frequency_penalty=frequency, presence_penalty=presence,
        )  # fmt: skip
        self._numbers = make_sampling_params(self._options)
        self._seen: list[int] = []

    def accept(self, token: int) -> None:
        """Record a token that was chosen, or is in the prompt."""
        self._seen.append(token)
        if (last := self._options.repeat_last_n) >= 0:
            del self._seen[: max(len(self._seen) - last, 0)]

    def recall(self, history: Sequence[int]) -> None:
        """Record all tokens so far."""
        last = self._options.repeat_last_n
        self._seen = list(history if last < 0 else history[max(len(history) - last, 0) :])

    def reset(self) -> None:
        """Forget all tokens."""
        self._seen.clear()

    def apply(self, choice: Choice) -> Choice:
        """Lower the logits of recent tokens."""
        if not self._options.penalised or not self._seen:
            return choice
        return choice.replace_logits(lambda logits: penalise(logits, self._seen, self._numbers))


def probabilities(found: Candidates) -> NDArray[np.float64]:
    """Return the probabilities of candidates, the likeliest first."""
    # Less the largest, so that nothing overflows.
    powers = np.exp(found.logits.astype(np.float64) - found.logits[0])
    return powers / powers.sum()


def _within(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise OptionError(f"{name}: {value}, needs {low} to {high}")
    return value
