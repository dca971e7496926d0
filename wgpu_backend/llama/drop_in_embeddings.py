"""Embeddings of Llama."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.pooling import unit
from wgpu_backend.errors import ContextFull, OptionError
from wgpu_backend.llama.batch import Batch
from wgpu_backend.llama.context import Context

NO_POOLING = 0


class NotForEmbeddings(OptionError, RuntimeError):
    """The model was made without ``embedding=True``; llama-cpp-python has a RuntimeError there."""


class Embeddings(ABC):
    """The part of `Llama` that makes vectors of texts."""

    model_path: str
    n_batch: int
    _embedding: bool

    @property
    @abstractmethod
    def ctx(self) -> Context:
        """The context."""

    @abstractmethod
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Turn UTF-8 into tokens."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all tokens."""

    def pooling_type(self) -> int:
        """How embeddings of tokens become one: ``LLAMA_POOLING_TYPE_…``."""
        return self.ctx.pooling_type()

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:  # noqa: ANN401  of four shapes
        """Vectors of texts.

        Parameters
        ----------
        normalize : bool
            Make their length 1.
        truncate : bool
            Cut texts to `n_batch` tokens; else longer ones are an error.
        return_count : bool
            Give the number of tokens too.

        Returns
        -------
        list
            Of a text: a vector; without pooling a list of vectors, one a token. Of several texts, a
            list of these.

        Raises
        ------
        OptionError
            The model was not made with ``embedding=True``.
        ContextFull
            A text is too long.
        """
        if not self._embedding:
            raise NotForEmbeddings("embed: needs a model that was made with embedding=True")
        texts = [input] if isinstance(input, str) else list(input)
        most = min(self.n_batch, self.ctx.n_ctx())
        found: list[Any] = []
        total = 0
        self.ctx.set_embeddings(True)
        try:
            for text in texts:
                tokens = self._cut(self.tokenize(text.encode()), most, truncate=truncate)
                total += len(tokens)
                found.append(self._vectors(tokens, normalize=normalize))
        finally:
            self.ctx.set_embeddings(False)
            self.ctx.clear()
            self.reset()
        vectors = found[0] if isinstance(input, str) else found
        return (vectors, total) if return_count else vectors

    def _cut(self, tokens: list[int], most: int, *, truncate: bool) -> list[int]:
        if not tokens:
            raise ContextFull("embed: a text has 0 tokens, needs at least 1")
        if len(tokens) > most and not truncate:
            raise ContextFull(
                f"embed: a text has {len(tokens)} tokens, n_batch and n_ctx hold {most}"
            )
        return tokens[:most]

    def _vectors(self, tokens: Sequence[int], *, normalize: bool) -> list[Any]:
        context = self.ctx
        context.clear()
        context.decode(Batch.get_one(tokens))
        if context.pooling_type() == NO_POOLING:
            return [_made(row, normalize) for row in context.get_embeddings()]
        return _made(context.get_embeddings_seq(0), normalize)

    def create_embedding(
        self,
        input: str | Sequence[str],
        model: str | None = None,
    ) -> dict[str, Any]:
        """Vectors of texts, as OpenAI's API gives them."""
        texts = [input] if isinstance(input, str) else list(input)
        vectors, count = self.embed(texts, return_count=True)
        data = [
            {"object": "embedding", "embedding": vector, "index": i}
            for i, vector in enumerate(vectors)
        ]
        return {
            "object": "list",
            "data": data,
            "model": model or self.model_path,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }


def _made(row: NDArray[np.float32], normalize: bool) -> list[float]:
    return (unit(row) if normalize else row).tolist()
