"""The chain of samplers, with a method that adds each kind: llama.h's ``llama_sampler_…``."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wgpu_backend.errors import BackendError, OptionError
from wgpu_backend.llama.context import Context
from wgpu_backend.llama.grammar import GrammarSampler, parse_grammar
from wgpu_backend.llama.model import Model
from wgpu_backend.ops.sampling.host.dry import Dry
from wgpu_backend.ops.sampling.host.mirostat import XTC, Mirostat, MirostatV2
from wgpu_backend.ops.sampling.host.options import BREAKERS
from wgpu_backend.ops.sampling.host.steps import (
    Choice,
    Dist,
    Greedy,
    LogitBias,
    MinP,
    Penalties,
    Random,
    SamplerStep,
    Temp,
    TempExt,
    TopK,
    TopNSigma,
    TopP,
    Typical,
)

# LLAMA_DEFAULT_SEED: a seed is drawn.
DEFAULT_SEED = 0xFFFFFFFF
Rows = NDArray[np.float32]


class Custom(SamplerStep):
    """A sampler that changes all logits by a function.

    Parameters
    ----------
    change : callable
        Maps the logits, (vocabulary,) float32, to new ones of the same shape.
    """

    def __init__(self, change: Callable[[Rows], ArrayLike]) -> None:
        self._change = change

    def apply(self, choice: Choice) -> Choice:
        """Return the choice with the function's logits."""
        # Once tokens are dropped and sorted, the logits of the others are not up to date.
        if choice.candidates is not None:
            raise OptionError("custom: needs all tokens; add it before samplers that drop some")
        # A copy, since functions may change the array in place.
        changed = np.asarray(self._change(choice.logits.copy()), np.float32)
        if changed.shape != choice.logits.shape:
            raise OptionError(f"custom: made {changed.shape} of {choice.logits.shape} logits")
        return replace(choice, logits=changed)


class SamplerChain(SamplerStep):
    """A chain of samplers: llama.h's ``llama_sampler_chain``. The last one chooses the token.

    Belongs to one thread and one sequence.
    """

    name = "chain"

    def __init__(self, *samplers: SamplerStep) -> None:
        self.samplers = list(samplers)

    def add(self, sampler: SamplerStep) -> SamplerChain:
        """Add a sampler at the end, and return the chain."""
        self.samplers.append(sampler)
        return self

    def n(self) -> int:
        """Return the number of samplers."""
        return len(self.samplers)

    def get(self, i: int) -> SamplerStep:
        """Return the sampler at a place."""
        return self.samplers[i]

    def remove(self, i: int) -> SamplerStep:
        """Remove the sampler at a place, and return it."""
        return self.samplers.pop(i)

    def add_greedy(self) -> SamplerChain:
        """Add greedy sampling: choose the likeliest token."""
        return self.add(Greedy())

    def add_dist(self, seed: int = DEFAULT_SEED) -> SamplerChain:
        """Add the random choice of a token by its probability."""
        return self.add(Dist(_draw_seed(seed)))

    def add_top_k(self, k: int) -> SamplerChain:
        """Add top-k: keep the `k` likeliest tokens."""
        return self.add(TopK(k))

    def add_top_p(self, p: float, min_keep: int = 1) -> SamplerChain:
        """Add top-p: keep the likeliest tokens that together reach probability `p`."""
        return self.add(TopP(p, min_keep))

    def add_min_p(self, p: float, min_keep: int = 1) -> SamplerChain:
        """Add min-p: keep tokens with `p` times the probability of the likeliest, or more."""
        return self.add(MinP(p, min_keep))

    def add_typical(self, p: float, min_keep: int = 1) -> SamplerChain:
        """Add typical sampling: keep tokens with nearly the expected surprise."""
        return self.add(Typical(p, min_keep))

    def add_top_n_sigma(self, n: float) -> SamplerChain:
        """Add top-n-sigma: keep logits at most `n` standard deviations below the largest."""
        return self.add(TopNSigma(n))

    def add_temp(self, temp: float) -> SamplerChain:
        """Add a temperature, which divides logits."""
        return self.add(Temp(temp))

    def add_temp_ext(self, t: float, delta: float, exponent: float) -> SamplerChain:
        """Add a dynamic temperature, `t` plus or minus `delta`, by the entropy of the tokens."""
        return self.add(TempExt(t, delta, exponent))

    def add_xtc(self, p: float, t: float, min_keep: int, seed: int = DEFAULT_SEED) -> SamplerChain:
        """Add XTC: with probability `p`, drop all tokens above `t` but the least likely one."""
        return self.add(XTC(p, t, min_keep, _draw_seed(seed)))

    def add_mirostat(
        self, n_vocab: int, seed: int, tau: float, eta: float, m: int = 100
    ) -> SamplerChain:
        """Add Mirostat 1, which steers surprise towards `tau`."""
        return self.add(Mirostat(n_vocab, _draw_seed(seed), tau, eta, m))

    def add_mirostat_v2(self, seed: int, tau: float, eta: float) -> SamplerChain:
        """Add Mirostat 2, which steers surprise towards `tau`."""
        return self.add(MirostatV2(_draw_seed(seed), tau, eta))

    def add_penalties(
        self,
        penalty_last_n: int = 64,
        penalty_repeat: float = 1.0,
        penalty_freq: float = 0.0,
        penalty_present: float = 0.0,
    ) -> SamplerChain:
        """Add penalties for the last `penalty_last_n` tokens; none if that is below 1."""
        # llama.h takes negative numbers for 0, unlike llama.cpp's programs.
        last = max(penalty_last_n, 0)
        return self.add(Penalties(last, penalty_repeat, penalty_freq, penalty_present))

    def add_dry(
        self,
        model: Model,
        dry_multiplier: float,
        dry_base: float = 1.75,
        dry_allowed_length: int = 2,
        dry_penalty_last_n: int = -1,
        seq_breakers: Iterable[str] = BREAKERS,
    ) -> SamplerChain:
        """Add DRY, which lowers tokens that would continue a repetition; see `Dry`.

        Parameters
        ----------
        dry_penalty_last_n : int
            Number of last tokens it searches; -1 for as many as the model was trained on.
        """
        if dry_penalty_last_n < -1:
            raise OptionError(f"dry: penalty_last_n is {dry_penalty_last_n}, needs -1 or more")
        last = model.n_ctx_train() if dry_penalty_last_n == -1 else dry_penalty_last_n
        breakers = model.spelling.breakers(tuple(seq_breakers))
        return self.add(Dry(dry_multiplier, dry_base, dry_allowed_length, last, breakers))

    def add_logit_bias(self, biases: Mapping[int, float]) -> SamplerChain:
        """Add biases, which are added to logits."""
        return self.add(LogitBias(biases))

    def add_custom(self, change: Callable[[Rows], ArrayLike]) -> SamplerChain:
        """Add a function that changes all logits."""
        return self.add(Custom(change))

    def add_grammar(self, model: Model, grammar: object) -> SamplerChain:
        """Add a grammar, which keeps the tokens it allows; add it before samplers that drop tokens.

        Parameters
        ----------
        grammar : LlamaGrammar, Grammar, or str
            A text is in GBNF.

        Raises
        ------
        GrammarError
            The grammar cannot be used.
        """
        ends = model.tokenizer.eog_ids
        return self.add(GrammarSampler(model.grammars, parse_grammar(grammar), ends))

    def get_seed(self) -> int:
        """Return the seed of the last random sampler; 0xFFFFFFFF if there is none."""
        found = [each.seed for each in self.samplers if isinstance(each, Random)]
        return found[-1] if found else DEFAULT_SEED

    def apply(self, choice: Choice) -> Choice:
        """Apply all samplers in their order."""
        for sampler in self.samplers:
            choice = sampler.apply(choice)
        return choice

    def accept(self, token: int) -> None:
        """Record a token that was chosen, or is in the prompt."""
        for sampler in self.samplers:
            sampler.accept(token)

    def accept_all(self, tokens: Sequence[int]) -> None:
        """Record the tokens of a prompt."""
        for token in tokens:
            self.accept(token)

    def reset(self) -> None:
        """Forget recorded tokens, and restart random numbers from their seeds."""
        for sampler in self.samplers:
            sampler.reset()

    def choose(self, logits: ArrayLike) -> int:
        """Choose a token by logits, without recording it.

        Raises
        ------
        BackendError
            A logit is NaN, all tokens are excluded, or no sampler of the chain chooses.
        """
        # max() is NaN if any logit is, and minus infinity if all are excluded.
        values = np.asarray(logits, np.float32)
        if not len(values) or not np.isfinite(values.max()):
            raise BackendError(f"sample: of {len(values)} logits the largest is not finite")
        chosen = self.apply(Choice(values)).token
        if chosen < 0:
            names = ", ".join(each.name for each in self.samplers) or "nothing"
            raise BackendError(f"sample: none of {names} chooses a token; add greedy or dist last")
        return chosen

    def sample(self, context: Context, idx: int = -1) -> int:
        """Choose a token by a context's logits, see `Context.get_logits_ith`, and record it."""
        token = self.choose(context.get_logits_ith(idx))
        self.accept(token)
        return token

    def close(self) -> None:
        """Do nothing: a chain has no device memory."""


def _draw_seed(seed: int) -> int:
    """Return a seed; 0xFFFFFFFF or a negative one is replaced by a random one."""
    return secrets.randbits(63) if seed == DEFAULT_SEED or seed < 0 else int(seed)
