"""Logits, hidden states, embeddings and reranking scores of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.arguments import texts as checked_texts
from wgpu_backend.engine.arguments import token_ids
from wgpu_backend.engine.generation import Session
from wgpu_backend.engine.pooling import pooled, pooling_of, unit
from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.engine.runner import HIDDEN, Head, Runner, Work
from wgpu_backend.engine.sessions import Sessions
from wgpu_backend.errors import ContextFull
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.model import Model
from wgpu_backend.text.tokenizer import Tokenizer


class Readings:
    """The methods that read tokens in the model's own session without sampling."""

    backend: Backend
    model: Model
    tokenizer: Tokenizer
    prompter: Prompter
    runner: Runner
    cache: Cache
    num_ctx: int
    _sessions: Sessions
    _session: Session
    _logits: Head

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Compute the logits after each token: (tokens, vocabulary).

        Raises
        ------
        ContextFull
            There are more tokens than the context holds.
        ModelError
            A token is not in the vocabulary.
        """
        rows = self._sessions.vocabulary
        limit = self.backend.executor.capabilities.max_binding_nbytes // (4 * rows)
        return self._rows("logits", token_ids(tokens, rows), self._logits, max(1, limit // 2))

    def states(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Compute the hidden states of each token after the last norm: (tokens, hidden).

        Raises
        ------
        ContextFull
            There are more tokens than the context holds.
        ModelError
            A token is not in the vocabulary.
        """
        ids = token_ids(tokens, self._sessions.vocabulary)
        return self._rows("states", ids, HIDDEN, self.runner.chunk)

    def embed(
        self, texts: str | Sequence[str], *, pooling: str | None = None
    ) -> NDArray[np.float32]:
        """Embed texts as unit vectors, each pooled from the states of its tokens: (texts, hidden).

        Parameters
        ----------
        pooling : str or None
            ``"mean"``, ``"cls"`` (the first token), ``"last"``, ``"max"``, ``"weightedmean"`` or
            ``"mean_sqrt_len"``; the results of several joined by ``+`` are concatenated. None for
            the file's own pooling, or the mean.

        Raises
        ------
        ContextFull
            A text has more tokens than the context holds.
        OptionError
            The pooling is unknown.
        ModelError
            The file's own pooling gives no vector of a text.
        """
        how = pooling_of(self.backend.config, pooling)
        rows: list[NDArray[np.float32]] = []
        for text in checked_texts("texts", texts):
            found = self._pooled("embed", self.tokenizer.encode(text), how)
            rows.append(unit(self._made_of(found, self.model.vector)))
        return np.stack(rows) if rows else np.zeros((0, 0), np.float32)

    def rerank(self, query: str, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Score how well each text answers a query: (texts,), higher is better.

        Raises
        ------
        ContextFull
            The query and a text together have more tokens than the context holds.
        ModelError
            The model is not a reranker.
        """
        if not self.model.is_reranker:  # before a tokenizer refuses the pair
            raise self.model.not_a_reranker()
        scores: list[float] = []
        for text in checked_texts("texts", texts):
            ids, types = self.prompter.pair(query, text)
            how = self.model.scored_pooling
            found = self._pooled("rerank", ids, how, self._typed(types))
            scores.append(float(self._made_of(found, self.model.score)[0]))
        return np.array(scores, np.float32)

    def _pooled(
        self,
        asked: str,
        tokens: Sequence[int],
        pooling: str,
        inputs: Mapping[str, NDArray[np.int32]] | None = None,
    ) -> NDArray[np.float32]:
        """Compute one pooled state of a text: (hidden,)."""
        return pooled(self._rows(asked, tokens, HIDDEN, self.runner.chunk, inputs), pooling)

    def _made_of(
        self, state: NDArray[np.float32], make: Callable[[Tensor], Tensor]
    ) -> NDArray[np.float32]:
        """Apply a model's head to one state of a text."""

        def made() -> NDArray[np.float32]:
            with Context(self.backend.executor) as context:
                x = context.from_numpy(state[None])
                y = make(x)
                return state if y is x else y.numpy()[0]

        return self._sessions.alone(self._session, made)

    def _typed(self, types: Sequence[int]) -> Mapping[str, NDArray[np.int32]]:
        """Return the token types as an input, if the model has it."""
        known = "token_types" in self.model.inputs()
        return {"token_types": np.array(types, np.int32)} if known else {}

    def _rows(
        self,
        asked: str,
        tokens: Sequence[int],
        head: Head,
        limit: int,
        inputs: Mapping[str, NDArray[np.int32]] | None = None,
    ) -> NDArray[np.float32]:
        """Compute the results of `head` for every token, in passes of at most `limit` tokens."""
        if self.model.prompt_encoder() is not None:
            raise self.model.fail(
                f"{asked}: {self.model.config.architecture} reads a prompt and writes an answer; "
                "use generate, or a file of its encoder alone"
            )
        if not 0 < len(tokens) <= self.num_ctx:
            raise ContextFull(
                f"{asked}: {len(tokens)} tokens, the context holds 1 to {self.num_ctx}"
            )
        whole = self._session.calls.take
        return whole(
            lambda: self._sessions.alone(
                self._session, lambda: self._computed(asked, tokens, head, limit, inputs or {})
            )
        )

    def _computed(
        self,
        asked: str,
        tokens: Sequence[int],
        head: Head,
        limit: int,
        inputs: Mapping[str, NDArray[np.int32]],
    ) -> NDArray[np.float32]:
        self._session.claim(f"{asked}()")
        self._session.tokens.clear()
        self.cache.remove(self._session.sequence)
        step = min(self.runner.chunk, limit)
        parts: list[NDArray[np.float32]] = []
        for start in range(0, len(tokens), step):
            part = tokens[start : start + step]
            given = {name: array[start : start + step] for name, array in inputs.items()}
            work = Work(self._session.sequence, part, range(len(part)), given)
            run = partial(self.runner.run, [work], head, {})
            parts.append(self._sessions.with_room(self._session, run).wait()[0][: len(part)])
        self._session.tokens += tokens
        return np.concatenate(parts)
