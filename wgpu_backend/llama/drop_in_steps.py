"""Tokens of Llama, step by step: computing, choosing, generating."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import BackendError, ContextFull
from wgpu_backend.llama.batch import Batch
from wgpu_backend.llama.chain import SamplerChain
from wgpu_backend.llama.context import Context
from wgpu_backend.llama.drop_in_options import require_neutral_sampling
from wgpu_backend.llama.model import Model
from wgpu_backend.llama.processors import (
    Ids,
    Processors,
    StoppingCriteria,
    criterion_of,
    processor_of,
)

Scores = NDArray[np.single]


class Steps(ABC):
    """The part of `Llama` that computes and chooses tokens.

    Attributes
    ----------
    n_tokens : int
        That the context has.
    input_ids : (n_ctx,), intc
        These tokens.
    """

    n_batch: int
    last_n_tokens_size: int
    n_tokens: int
    input_ids: Ids
    _seed: int
    _logits_all: bool
    _requires_eval: bool
    _rows: list[Scores | None]

    @property
    @abstractmethod
    def model(self) -> Model:
        """The model."""

    @property
    @abstractmethod
    def ctx(self) -> Context:
        """The context."""

    @abstractmethod
    def n_ctx(self) -> int:
        """Positions of the context."""

    @abstractmethod
    def n_vocab(self) -> int:
        """Tokens, and logits there are each time."""

    @property
    def eval_tokens(self) -> list[int]:
        """Tokens that the context has."""
        return self.input_ids[: self.n_tokens].tolist()

    @property
    def eval_logits(self) -> list[list[float]]:
        """Logits that were kept: of all tokens with ``logits_all``, else of the last one."""
        return [row.tolist() for row in self._rows[: self.n_tokens] if row is not None]

    @property
    def scores(self) -> Scores:
        """Logits (tokens, vocabulary); zeros where they were not kept."""
        nothing = np.zeros(self.n_vocab(), np.single)
        rows = [nothing if row is None else row for row in self._rows[: self.n_tokens]]
        return np.stack(rows) if rows else np.zeros((0, self.n_vocab()), np.single)

    def set_seed(self, seed: int) -> None:
        """Seed of generations from now on."""
        self._seed = seed

    def reset(self) -> None:
        """Forget all tokens."""
        self.n_tokens, self._requires_eval = 0, True

    def eval(self, tokens: Sequence[int]) -> None:
        """Compute tokens behind those that the context has.

        Raises
        ------
        ContextFull
            The context has no room for them.
        """
        context, given = self.ctx, [int(token) for token in tokens]
        if self.n_tokens + len(given) > self.n_ctx():
            raise ContextFull(
                f"eval: {self.n_tokens} tokens and {len(given)} more, the context holds "
                f"{self.n_ctx()}; load the model with a larger n_ctx"
            )
        self._go_back(self.n_tokens)
        for at in range(0, len(given), self.n_batch):
            self._eval_part(context, given[at : at + self.n_batch])

    def _eval_part(self, context: Context, part: Sequence[int]) -> None:
        batch = Batch(len(part))
        batch.add_sequence(part, logits_all=self._logits_all)
        context.decode(batch)
        end = self.n_tokens + len(part)
        self.input_ids[self.n_tokens : end] = part
        rows: Sequence[Scores | None] = list(context.get_logits())
        self._rows[self.n_tokens :] = [*([None] * (len(part) - len(rows))), *rows]
        self.n_tokens, self._requires_eval = end, False

    def _go_back(self, length: int) -> bool:
        """Have the context forget what follows; false where it cannot go on from there."""
        if self.ctx.seq_rm(0, length, -1):
            return True
        self.ctx.clear()
        if length:
            self._read_again(length)
        return False

    def _read_again(self, length: int) -> None:
        """Compute the first tokens once more, where layers have forgotten."""
        for at in range(0, length, self.n_batch):
            part = self.input_ids[at : min(at + self.n_batch, length)].tolist()
            self.ctx.decode(Batch.get_one(part))

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: Processors | None = None,
        grammar: object = None,
        idx: int | None = None,
        *,
        chain: SamplerChain | None = None,
    ) -> int:
        """Choose a token by the logits of the last one, or of the one at `idx`.

        Penalties know no token: `chain` is one that goes on from the call before, and knows what it
        chose, in place of a new one of the options.
        """
        if self.n_tokens == 0 or self._requires_eval:
            raise BackendError("sample: no token was computed; eval() some first")
        row = self._rows[self.n_tokens - 1 if idx is None else idx]
        if row is None:
            raise BackendError(
                f"sample: logits of token {idx} were not kept; needs logits_all=True"
            )
        if chain is None:
            chain = self._chain(
                top_k, top_p, min_p, typical_p, temp, repeat_penalty, frequency_penalty,
                presence_penalty, tfs_z, mirostat_mode, mirostat_eta, mirostat_tau, penalize_nl,
                logits_processor, grammar,
            )  # fmt: skip
        return chain.choose(row)

    def _chain(
        self,
        top_k: int,
        top_p: float,
        min_p: float,
        typical_p: float,
        temp: float,
        repeat_penalty: float,
        frequency_penalty: float,
        presence_penalty: float,
        tfs_z: float,
        mirostat_mode: int,
        mirostat_eta: float,
        mirostat_tau: float,
        penalize_nl: bool,
        given: Processors | None,
        grammar: object,
    ) -> SamplerChain:
        """Samplers in llama-cpp-python's order."""
        require_neutral_sampling(tfs_z, penalize_nl)
        chain, processor = SamplerChain(), processor_of(given)
        if processor is not None:
            chain.add_custom(lambda logits: processor(self.input_ids[: self.n_tokens], logits))
        chain.add_penalties(
            self.last_n_tokens_size, repeat_penalty, frequency_penalty, presence_penalty
        )
        if grammar is not None:
            chain.add_grammar(self.model, grammar)
        if temp < 0:
            return chain.add_dist(self._seed)
        if temp == 0:
            return chain.add_greedy()
        if mirostat_mode == 1:
            return chain.add_mirostat(self.n_vocab(), self._seed, mirostat_tau, mirostat_eta)
        if mirostat_mode == 2:
            return chain.add_mirostat_v2(self._seed, mirostat_tau, mirostat_eta)
        chain.add_top_k(top_k).add_typical(typical_p).add_top_p(top_p).add_min_p(min_p)
        return chain.add_temp(temp).add_dist(self._seed)

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Processors | None = None,
        stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria] | None = None,
        grammar: object = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Give tokens that follow a prompt, without end; those sent in are read behind each.

        A prompt that begins as what the context has is not computed again there. Penalties count
        the tokens that were chosen, neither the prompt's nor those sent in.
        """
        chain = self._chain(
            top_k, top_p, min_p, typical_p, temp, repeat_penalty, frequency_penalty,
            presence_penalty, tfs_z, mirostat_mode, mirostat_eta, mirostat_tau, penalize_nl,
            logits_processor, grammar,
        )  # fmt: skip
        ends = criterion_of(stopping_criteria)
        given = [int(token) for token in tokens]
        self.eval(self._unread(given) if reset else given)
        while True:
            token = self.sample(chain=chain)
            if ends is not None and ends(*self._seen()):
                return
            sent = yield token
            chain.accept(token)
            self.eval([token, *(sent or ())])

    def _unread(self, tokens: Sequence[int]) -> Sequence[int]:
        """What a prompt has beyond its beginning that the context has; at least its last token."""
        same = self.longest_token_prefix(self.eval_tokens, tokens)
        same = min(same, len(tokens) - 1)
        self.n_tokens = max(same, 0)
        return tokens[self.n_tokens :]

    def _seen(self) -> tuple[Ids, Scores]:
        """Tokens that the context has, and the logits of the last one."""
        last = self._rows[self.n_tokens - 1]
        return self.input_ids[: self.n_tokens], np.zeros(0, np.single) if last is None else last

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """Tokens that two texts begin with alike."""
        pairs = enumerate(zip(a, b, strict=False))
        return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
