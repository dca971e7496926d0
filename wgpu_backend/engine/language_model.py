"""A loaded language model: text, tokens, scores and embeddings of one context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.device_info import DeviceInfo
from wgpu_backend.dtypes import DType
from wgpu_backend.engine.adapters import Adapters, Given, scaled_files
from wgpu_backend.engine.answers import Answers
from wgpu_backend.engine.arguments import texts as checked_texts
from wgpu_backend.engine.arguments import token_ids
from wgpu_backend.engine.conversation import Conversation
from wgpu_backend.engine.encoding import runner_of
from wgpu_backend.engine.generation import Stats
from wgpu_backend.engine.pooling import pooled, pooling_of, unit
from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.engine.runner import HIDDEN, Head, Work
from wgpu_backend.engine.sessions import Serving, Sessions
from wgpu_backend.engine.shown import Shown
from wgpu_backend.errors import (
    ContextFull,
    OutOfMemory,
    TokenizerError,
)
from wgpu_backend.kvcache.cache import Cache
from wgpu_backend.kvcache.layers import nbytes_per_position
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.model import Model, model_class
from wgpu_backend.tokenizer import Tokenizer
from wgpu_backend.unclosed import Unclosed

DEFAULT_CONTEXT = 4096
MAX_CONTEXT = 1 << 24  # positions; tables of blocks are made for all of them
LONG_SEQUENCES = 4  # that caches which forget have room for at their longest


def _depth(device: DeviceInfo) -> int:
    """Steps under way that suit a device: NumPy computes at once, a rasteriser's submit blocks."""
    return {"cpu": 1, "software": 2}.get(device.kind, 4)


class LanguageModel(Shown, Answers):
    """A model with its tokenizer, cache and recorded steps.

    Attributes
    ----------
    backend : Backend
    model : Model
    tokenizer : Tokenizer
    prompter : Prompter
        Renders conversations.
    runner : Runner
        Runs passes; its clock tells host time.
    depth : int
        Steps of a generation that are under way at most, 1 to 8; of brief ones, which go in pairs,
        up to two pairs. With 1 the device waits while the host looks at each token; the tokens are
        the same.
    stats : Stats
        Of the last generation.
    """

    def __init__(self, backend: Backend, num_ctx: int | None, kv_dtype: DType) -> None:
        self.backend = backend
        self.tokenizer = Tokenizer.from_metadata(backend.file.metadata)
        self.model: Model = model_class(backend.config)(backend)
        vocabulary = self._checked_vocabulary()
        self.num_ctx = self._context(num_ctx)
        self.model.fit_context(self.num_ctx)
        self.cache = self._cache(kv_dtype)
        self.prompter = Prompter(backend.config, self.tokenizer)
        self.runner = runner_of(self.model, self.cache)
        self.depth = _depth(self.device)
        self.stats = Stats()
        name, ends = str(backend.file.path), self.tokenizer.eog_ids
        self._sessions = Sessions(self.runner, Serving(name, vocabulary, ends, self.num_ctx))
        self._session = self._sessions.main
        model = self.model  # not `self`, which would then live until a collection
        self._logits = Head("logits", lambda _, hidden: [model.logits(hidden)])
        self._adapters = Adapters(model)
        self._unclosed = Unclosed(f"model {backend.file.path}", backend)

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def device(self) -> DeviceInfo:
        """Device the model runs on."""
        return self.backend.device

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding, which may be more than the tokenizer's tokens."""
        return self._sessions.vocabulary

    def _checked_vocabulary(self) -> int:
        rows = self.backend.require("token_embd.weight").shape[0]
        if self.tokenizer.vocab_size > rows:
            raise TokenizerError(
                f"{self.backend.file.path}: the tokenizer has {self.tokenizer.vocab_size} tokens, "
                f"token_embd has {rows} rows"
            )
        return rows

    def _context(self, wanted: int | None) -> int:
        own = self.backend.config.uint("context_length", DEFAULT_CONTEXT, at_least=1)
        limit = self.model.context_limit() or MAX_CONTEXT
        if wanted is None:
            return min(own, limit, DEFAULT_CONTEXT)
        if 1 <= wanted <= limit:
            return wanted
        what = "the model knows" if limit < MAX_CONTEXT else "needs"
        raise ContextFull(f"num_ctx: {wanted}, {what} 1 to {limit}")

    def _cache(self, kv_dtype: DType) -> Cache:
        executor = self.backend.executor
        try:
            return self.model.make_cache(executor, LONG_SEQUENCES, self.num_ctx, kv_dtype)
        except OutOfMemory as error:
            each = nbytes_per_position(self.model.cache_layers(), kv_dtype)
            raise OutOfMemory(
                f"num_ctx: {self.num_ctx} positions of {each} bytes do not fit: {error}; "
                "choose a smaller num_ctx",
                error.report,
            ) from None

    def session(self) -> Conversation:
        """Begin a conversation of its own, with a part of the cache that no other one touches.

        Returns
        -------
        Conversation
            Answers as the model does, beside it. Close it, or use it as a context manager.

        Raises
        ------
        BackendError
            The model was closed, or has no place for another one.
        """
        return Conversation(self, self._sessions)

    @property
    def adapters(self) -> Adapters:
        """LoRA adapters and control vectors that are set, see `set_adapters`."""
        return self._adapters

    def set_adapters(self, adapters: Given | Sequence[Given] = ()) -> None:
        """Have these LoRA adapters change the model from now on, and no others.

        The model's weights stay as they are; files that were set before are not read again, and
        another scale needs no new graphs. Conversations are read again where they go on, since what
        the cache has of them was made by another model.

        Parameters
        ----------
        adapters : sequence of path, or of (path, scale)
            GGUF files, several at once if need be; with a scale, so many times ``alpha / rank``.

        Raises
        ------
        GGUFError, ModelError
            A file is damaged, or does not fit the model; the adapters before are still set.
        OutOfMemory
            One does not fit on the device; likewise. `unload_adapters` may help.
        OptionError
            `adapters` is no such sequence.
        BackendError
            A stream is under way.
        """
        given = scaled_files("adapters", adapters)
        self._sessions.change("set_adapters", lambda: self._adapters.set_loras(given))

    def set_control_vectors(
        self,
        control_vectors: Given | Sequence[Given] = (),
        layers: tuple[int, int] | None = None,
    ) -> None:
        """Have these control vectors steer the model from now on, and no others.

        Their sum is added to the states behind each layer that they have a direction for.

        Parameters
        ----------
        control_vectors : sequence of path, or of (path, scale)
            GGUF files.
        layers : pair of int or None
            First and last layer to steer, counted from 0, without layer 0; None for all.

        Raises
        ------
        GGUFError, ModelError
            A file is damaged, or does not fit the model, which is steered as before.
        OptionError
            `control_vectors` is no such sequence, or there are no such layers.
        BackendError
            A stream is under way.
        """
        given = scaled_files("control_vectors", control_vectors)
        self._sessions.change(
            "set_control_vectors", lambda: self._adapters.set_control_vectors(given, layers)
        )

    def unload_adapters(self) -> None:
        """Release LoRA adapters that are loaded and not set, and graphs that were made for them."""
        self._sessions.alone(self._session, self._unload_adapters)

    def _unload_adapters(self) -> None:
        self.runner.forget_variants()
        self._adapters.unload()

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Scores of every vocabulary entry after each token: (tokens, vocabulary).

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
        """States of each token after the last norm: (tokens, hidden).

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
        """Unit vectors for texts, each made of the states of its tokens: (texts, hidden).

        Parameters
        ----------
        texts : str or sequence of str
        pooling : str or None
            ``"mean"`` of the tokens, the first one's (``"cls"``) or the ``"last"`` one's; None for
            what the file's ``pooling_type`` says, or the mean.

        Raises
        ------
        ContextFull
            A text has more tokens than the context holds.
        OptionError
            There is no such pooling.
        ModelError
            The file says none that makes one vector of a text.
        """
        how = pooling_of(self.backend.config, pooling)
        rows: list[NDArray[np.float32]] = []
        for text in checked_texts("texts", texts):
            found = self._pooled("embed", self.tokenizer.encode(text), how)
            rows.append(unit(self._made_of(found, self.model.vector)))
        return np.stack(rows) if rows else np.zeros((0, 0), np.float32)

    def rerank(self, query: str, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Score how well each text answers a query: (texts,), more is better.

        Raises
        ------
        ContextFull
            Query and text have more tokens together than the context holds.
        ModelError
            The model is no reranker.
        """
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
        """One state of a text: (hidden,)."""
        return pooled(self._rows(asked, tokens, HIDDEN, self.runner.chunk, inputs), pooling)

    def _made_of(
        self, state: NDArray[np.float32], make: Callable[[Tensor], Tensor]
    ) -> NDArray[np.float32]:
        """What a model makes of one state of a text."""

        def made() -> NDArray[np.float32]:
            with Context(self.backend.executor) as context:
                x = context.from_numpy(state[None])
                y = make(x)
                return state if y is x else y.numpy()[0]

        return self._sessions.alone(self._session, made)

    def _typed(self, types: Sequence[int]) -> Mapping[str, NDArray[np.int32]]:
        """Types of tokens, for a model that tells them apart."""
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
        """Results of `head` for every token, in passes of at most `limit` tokens."""
        if self.model.reader() is not None:
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

    def memory_report(self) -> str:
        """Who holds how much device memory, as a table."""
        return self.backend.memory_report()

    def close(self) -> None:
        """Release the device, after the step that is under way; again is harmless."""
        self._sessions.close(self._release)

    def _release(self) -> None:
        self._unclosed.silence()
        self.runner.close()
        self._adapters.close()
        self.cache.close()
        self.backend.close()
