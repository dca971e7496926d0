"""A chain of samplers, with a method to add each kind."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wgpu_backend.errors import BackendError, OptionError
from wgpu_backend.llama.context import Context
from wgpu_backend.llama.grammar import GrammarSampler, grammar_of
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

DEFAULT_SEED = 0xFFFFFFFF  # draws one
Rows = NDArray[np.float32]


class Custom(SamplerStep):
    """A function of all logits.

    Parameters
    ----------
    change : callable
        From (vocabulary,) float32 to as many.
    """

    def __init__(self, change: Callable[[Rows], ArrayLike]) -> None:
        self._change = change

    def apply(self, choice: Choice) -> Choice:
        """Have the function change them."""
        if choice.candidates is not None:
            raise OptionError("custom: belongs in front of samplers that drop tokens")
        changed = np.asarray(self._change(choice.logits.copy()), np.float32)
        if changed.shape != choice.logits.shape:
            raise OptionError(f"custom: made {changed.shape} of {choice.logits.shape} logits")
        return replace(choice, logits=changed)


class SamplerChain(SamplerStep):
    """Samplers one behind another: llama.h's ``llama_sampler_chain``. The last one chooses.

    Belongs to one thread and one sequence.
    """

    name = "chain"

    def __init__(self, *samplers: SamplerStep) -> None:
        self.samplers = list(samplers)

    def add(self, sampler: SamplerStep) -> SamplerChain:
        """Add one at the end; the chain."""
        self.samplers.append(sampler)
        return self

    def n(self) -> int:
        """Samplers there are."""
        return len(self.samplers)

    def get(self, i: int) -> SamplerStep:
        """Sampler by its place."""
        return self.samplers[i]

    def remove(self, i: int) -> SamplerStep:
        """Take one out."""
        return self.samplers.pop(i)

    def add_greedy(self) -> SamplerChain:
        """Choose the likeliest."""
        return self.add(Greedy())

    def add_dist(self, seed: int = DEFAULT_SEED) -> SamplerChain:
        """Choose by probability."""
        return self.add(Dist(_drawn(seed)))

    def add_top_k(self, k: int) -> SamplerChain:
        """Keep the `k` likeliest."""
        return self.add(TopK(k))

    def add_top_p(self, p: float, min_keep: int = 1) -> SamplerChain:
        """Keep the likeliest that together reach a probability."""
        return self.add(TopP(p, min_keep))

    def add_min_p(self, p: float, min_keep: int = 1) -> SamplerChain:
        """Keep those at least so probable, relative to the likeliest."""
        return self.add(MinP(p, min_keep))

    def add_typical(self, p: float, min_keep: int = 1) -> SamplerChain:
        """Keep those of nearly the expected surprise."""
        return self.add(Typical(p, min_keep))

    def add_top_n_sigma(self, n: float) -> SamplerChain:
        """Keep logits at most so many standard deviations below the largest."""
        return self.add(TopNSigma(n))

    def add_temp(self, temp: float) -> SamplerChain:
        """Divide logits."""
        return self.add(Temp(temp))

    def add_temp_ext(self, t: float, delta: float, exponent: float) -> SamplerChain:
        """Divide logits by how sure the model is."""
        return self.add(TempExt(t, delta, exponent))

    def add_xtc(self, p: float, t: float, min_keep: int, seed: int = DEFAULT_SEED) -> SamplerChain:
        """Leave out the likeliest now and then."""
        return self.add(XTC(p, t, min_keep, _drawn(seed)))

    def add_mirostat(
        self, n_vocab: int, seed: int, tau: float, eta: float, m: int = 100
    ) -> SamplerChain:
        """Steer surprise, by Mirostat 1."""
        return self.add(Mirostat(n_vocab, _drawn(seed), tau, eta, m))

    def add_mirostat_v2(self, seed: int, tau: float, eta: float) -> SamplerChain:
        """Steer surprise, by Mirostat 2."""
        return self.add(MirostatV2(_drawn(seed), tau, eta))

    def add_penalties(
        self,
        penalty_last_n: int = 64,
        penalty_repeat: float = 1.0,
        penalty_freq: float = 0.0,
        penalty_present: float = 0.0,
    ) -> SamplerChain:
        """Lower the logits of tokens seen lately; of none with a `penalty_last_n` below 1."""
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
        """Lower tokens that would go on with a repetition; see `sample.dry.Dry`.

        A `dry_penalty_last_n` of -1 looks as many tokens back as the model was trained with.
        """
        if dry_penalty_last_n < -1:
            raise OptionError(f"dry: penalty_last_n is {dry_penalty_last_n}, needs -1 or more")
        last = model.n_ctx_train() if dry_penalty_last_n == -1 else dry_penalty_last_n
        breakers = model.spelling.breakers(tuple(seq_breakers))
        return self.add(Dry(dry_multiplier, dry_base, dry_allowed_length, last, breakers))

    def add_logit_bias(self, biases: Mapping[int, float]) -> SamplerChain:
        """Add numbers to logits."""
        return self.add(LogitBias(biases))

    def add_custom(self, change: Callable[[Rows], ArrayLike]) -> SamplerChain:
        """Have a function change all logits."""
        return self.add(Custom(change))

    def add_grammar(self, model: Model, grammar: object) -> SamplerChain:
        """Keep what a grammar lets come next; belongs in front of samplers that drop tokens.

        Parameters
        ----------
        grammar : LlamaGrammar, Grammar, or str
            A text is in GBNF.

        Raises
        ------
        GrammarError
            It cannot be used.
        """
        ends = model.tokenizer.eog_ids
        return self.add(GrammarSampler(model.grammars, grammar_of(grammar), ends))

    def get_seed(self) -> int:
        """Seed of the last sampler that draws; 0xFFFFFFFF where none does."""
        found = [each.seed for each in self.samplers if isinstance(each, Random)]
        return found[-1] if found else DEFAULT_SEED

    def apply(self, choice: Choice) -> Choice:
        """What the samplers leave, in their order."""
        for sampler in self.samplers:
            choice = sampler.apply(choice)
        return choice

    def accept(self, token: int) -> None:
        """Take in that a token was chosen, or stands in the prompt."""
        for sampler in self.samplers:
            sampler.accept(token)

    def accept_all(self, tokens: Sequence[int]) -> None:
        """Take in tokens of a prompt."""
        for token in tokens:
            self.accept(token)

    def reset(self) -> None:
        """Forget tokens, and begin random numbers anew."""
        for sampler in self.samplers:
            sampler.reset()

    def choose(self, logits: ArrayLike) -> int:
        """Choose a token by its logits; it is not accepted.

        Raises
        ------
        BackendError
            A logit is NaN, all are ruled out, or no sampler of the chain chooses.
        """
        values = np.asarray(logits, np.float32)
        if not len(values) or not np.isfinite(values.max()):
            raise BackendError(f"sample: of {len(values)} logits the largest is not finite")
        chosen = self.apply(Choice(values)).token
        if chosen < 0:
            names = ", ".join(each.name for each in self.samplers) or "nothing"
            raise BackendError(f"sample: no sampler chooses of {names}; add greedy or dist last")
        return chosen

    def sample(self, context: Context, idx: int = -1) -> int:
        """Choose a token by logits of a context, see `Context.get_logits_ith`, and accept it."""
        token = self.choose(context.get_logits_ith(idx))
        self.accept(token)
        return token

    def close(self) -> None:
        """Nothing: a chain holds nothing of a device."""


def _drawn(seed: int) -> int:
    """A seed, drawn where 0xFFFFFFFF or one below 0 asks for that."""
    return secrets.randbits(63) if seed == DEFAULT_SEED or seed < 0 else int(seed)
