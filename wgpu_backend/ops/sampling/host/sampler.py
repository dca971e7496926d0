"""The NumPy sampler: options, a stream of random numbers, and the choice of one token at a time."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import ArrayLike, NDArray

from wgpu_backend.errors import BackendError, OptionError, ShapeError
from wgpu_backend.ops.sampling.host.candidates import Candidates, largest
from wgpu_backend.ops.sampling.host.dry import Breakers, Dry
from wgpu_backend.ops.sampling.host.mirostat import XTC, Mirostat, MirostatV2
from wgpu_backend.ops.sampling.host.options import RANDOM_SEED, SAMPLERS, SamplingOptions
from wgpu_backend.ops.sampling.host.sampling_params import SamplingParams, make_sampling_params
from wgpu_backend.ops.sampling.host.steps import (
    Choice,
    Dist,
    MinP,
    Penalties,
    SamplerStep,
    Temp,
    TempExt,
    TopK,
    TopNSigma,
    TopP,
    Typical,
)
from wgpu_backend.ops.sampling.host.transforms import cut, penalise, pick, typical_p


def build_chain(
    options: SamplingOptions, seed: int, vocabulary: int, breakers: Breakers | None
) -> list[SamplerStep]:
    """Build the samplers of options, in their order; the last one chooses.

    Parameters
    ----------
    vocabulary : int
        Tokens that there are.
    breakers : Breakers or None
        Those of DRY, where that is on.

    Raises
    ------
    OptionError
        DRY is on, and there are none.
    """
    if options.mirostat:
        how = seed, options.mirostat_tau, options.mirostat_eta
        last = MirostatV2(*how) if options.mirostat == 2 else Mirostat(vocabulary, *how)
        # As in llama.cpp, Mirostat replaces all samplers but the temperature.
        return [Temp(options.temperature), last]
    if options.dries and breakers is None:
        raise OptionError(
            "dry_multiplier: DRY needs a model's vocabulary, in which its breakers are looked up"
        )
    make = _makers(options, seed, breakers or {})
    order = SAMPLERS if options.samplers is None else options.samplers
    return [*(make[name]() for name in order if options.applies(name)), Dist(seed)]


def _makers(
    options: SamplingOptions, seed: int, breakers: Breakers
) -> Mapping[str, Callable[[], SamplerStep]]:
    """Return a constructor for each sampler, by name."""
    keep = options.min_keep
    return {
        "penalties": lambda: Penalties(
            options.repeat_last_n,
            options.repeat_penalty,
            options.frequency_penalty,
            options.presence_penalty,
        ),
        "dry": lambda: Dry(
            options.dry_multiplier,
            options.dry_base,
            options.dry_allowed_length,
            options.dry_penalty_last_n,
            breakers,
        ),
        "top_n_sigma": lambda: TopNSigma(options.top_n_sigma),
        "top_k": lambda: TopK(options.top_k),
        "typ_p": lambda: Typical(options.typical_p, keep),
        "top_p": lambda: TopP(options.top_p, keep),
        "min_p": lambda: MinP(options.min_p, keep),
        "xtc": lambda: XTC(options.xtc_probability, options.xtc_threshold, keep, seed),
        "temperature": lambda: TempExt(
            options.temperature, options.dynatemp_range, options.dynatemp_exponent
        ),
    }


class Sampler:
    """A sampler of the tokens of one sequence.

    Parameters
    ----------
    options : SamplingOptions
    vocab_size : int
        Logits there are each time.
    breakers : Breakers or None
        Of DRY, where the options have that on: see `Spelling.breakers`.

    Attributes
    ----------
    options : SamplingOptions
    sampling : SamplingParams
        The options as numbers.
    seed : int
        The one in use, drawn where the options leave it open.

    Raises
    ------
    OptionError
        `vocab_size` is not positive, or DRY has no breakers.
    """

    def __init__(
        self, options: SamplingOptions, vocab_size: int, breakers: Breakers | None = None
    ) -> None:
        if vocab_size < 1:
            raise OptionError(f"vocab_size: {vocab_size}, needs at least 1")
        self.options = options
        self.sampling: SamplingParams = make_sampling_params(options)
        self.vocab_size = vocab_size
        drawn = options.seed is None or options.seed == RANDOM_SEED
        self.seed: int = secrets.randbits(63) if drawn else int(options.seed or 0)
        self._chain = (
            build_chain(options, self.seed, vocab_size, breakers) if options.chained else None
        )
        self._chosen: Choice | None = None
        self.reset()

    def reset(self) -> None:
        """Restart the stream of random numbers."""
        self._random = Generator(PCG64(self.seed))
        self._chosen = None
        for step in self._chain or ():
            step.reset()

    def draw(self) -> int:
        """Take the next random number, uniform in [0, 2^32): one for each token."""
        return int(self._random.integers(1 << 32, dtype=np.uint32))

    def recent(self, history: Sequence[int]) -> Sequence[int]:
        """Return the tokens that the penalties see: the last of `history`, or none."""
        if not self.options.penalised:
            return ()
        count = self.options.repeat_last_n
        return history if count < 0 else history[-count:]

    def sample(self, logits: ArrayLike, history: Sequence[int] = ()) -> int:
        """Choose a token.

        Parameters
        ----------
        logits : (vocab_size,), float32
            Minus infinity rules a token out.
        history : sequence of int
            Tokens of the sequence so far, the oldest first.

        Returns
        -------
        int

        Raises
        ------
        ShapeError
            There are not `vocab_size` logits.
        BackendError
            A logit is NaN or infinite, or all tokens are ruled out.
        """
        # Drawn for greedy choices, too: so a stream's place depends only on the number of tokens.
        draw = self.draw()
        values = self._values(logits)
        if self._chain is None:
            values = self._penalise(values, history)
        top = values.max()
        # `max` of a row with NaN is NaN, so one comparison finds all faults.
        if not np.isfinite(top):
            raise BackendError(
                f"sample: the largest of {len(values)} logits is {top}, needs finite"
            )
        if self.options.greedy:
            return int(np.argmax(values))
        if self._chain is not None:
            return self._by_chain(values, history)
        return pick(self._candidates(values), self.sampling, draw)

    def _by_chain(self, values: NDArray[np.float32], history: Sequence[int]) -> int:
        choice = Choice(values)
        for step in self._chain or ():
            step.recall(history)
            choice = step.apply(choice)
        self._chosen = choice
        return choice.token

    def chances(self, logits: ArrayLike, history: Sequence[int] = ()) -> Candidates:
        """Return the tokens that `sample` would choose among, with log probabilities as logits.

        For a chain of samplers, return those among which the last token was chosen.
        """
        if self._chosen is not None:
            return _probable(self._chosen.sort_candidates(), math.log2(math.e))
        values = self._penalise(self._values(logits), history)
        if self.options.greedy:
            return Candidates(np.array([np.argmax(values)]), np.zeros(1, np.float32))
        return _probable(cut(self._candidates(values), self.sampling), self.sampling.sharpness)

    def _candidates(self, values: NDArray[np.float32]) -> Candidates:
        found = largest(values, self.options.top_k)
        return typical_p(found, self.options.typical_p) if self.options.typical_p < 1 else found

    def _values(self, logits: ArrayLike) -> NDArray[np.float32]:
        values = np.asarray(logits, np.float32)
        if values.shape != (self.vocab_size,):
            raise ShapeError(f"sample: logits are {values.shape}, needs ({self.vocab_size},)")
        return values

    def _penalise(self, logits: NDArray[np.float32], history: Sequence[int]) -> NDArray[np.float32]:
        seen = self.recent(history)
        return penalise(logits, seen, self.sampling) if len(seen) else logits


def _probable(found: Candidates, sharpness: float) -> Candidates:
    """Return candidates with log probabilities as logits."""
    # Less the largest, so that nothing overflows.
    powers = (found.logits.astype(np.float64) - found.logits[0]) * sharpness
    powers -= np.log2(np.exp2(powers).sum())
    return Candidates(found.ids, (powers * np.log(2)).astype(np.float32))
