"""A loaded language model: text, tokens, scores and embeddings of one context."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from operator import index
from typing import Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.device_info import DeviceInfo
from wgpu_backend.dtypes import DType
from wgpu_backend.engine.generation import Session, Stats, TokenStream, pieces
from wgpu_backend.engine.prompt import Message, Prompter
from wgpu_backend.engine.runner import HIDDEN, Head, Runner, Work
from wgpu_backend.engine.step_sampler import StepSampler
from wgpu_backend.errors import (
    BackendError,
    ContextFull,
    ModelError,
    OutOfMemory,
    TokenizerError,
)
from wgpu_backend.kvcache.paged import PagedCache
from wgpu_backend.ml.backend import Backend
from wgpu_backend.model import Model, model_class
from wgpu_backend.sample import SamplingOptions
from wgpu_backend.tokenizer import Tokenizer

DEFAULT_CONTEXT = 4096
MAX_CONTEXT = 1 << 24  # positions; tables of blocks are made for all of them
Item = TypeVar("Item")


def _depth(device: DeviceInfo) -> int:
    """Steps under way that suit a device: NumPy computes at once, a rasteriser's submit blocks."""
    return {"cpu": 1, "software": 2}.get(device.kind, 4)


class LanguageModel:
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
        self._use = threading.RLock()
        self._closed = False
        self.backend = backend
        self.tokenizer = Tokenizer.from_metadata(backend.file.metadata)
        self.model: Model = model_class(backend.config)(backend)
        self._check_vocabulary()
        self.num_ctx = self._context(num_ctx)
        self.model.fit_context(self.num_ctx)
        self.cache = self._cache(kv_dtype)
        self.prompter = Prompter(backend.config, self.tokenizer)
        self.runner = Runner(self.model, self.cache)
        self.depth = _depth(self.device)
        self.stats = Stats()
        self._session = Session()
        self._logits = Head("logits", lambda _, hidden: [self.model.logits(hidden)])

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
        self._require_open()
        return self.backend.require("token_embd.weight").shape[0]

    def _check_vocabulary(self) -> None:
        rows = self.vocabulary
        if self.tokenizer.vocab_size > rows:
            raise TokenizerError(
                f"{self.backend.file.path}: the tokenizer has {self.tokenizer.vocab_size} tokens, "
                f"token_embd has {rows} rows"
            )

    def _context(self, wanted: int | None) -> int:
        own = self.backend.config.uint("context_length", DEFAULT_CONTEXT, at_least=1)
        if wanted is None:
            return min(own, DEFAULT_CONTEXT)
        if not 1 <= wanted <= MAX_CONTEXT:
            raise ContextFull(f"num_ctx: {wanted}, needs 1 to {MAX_CONTEXT}")
        return wanted

    def _cache(self, kv_dtype: DType) -> PagedCache:
        layers = self.model.cache_layers()
        try:
            return PagedCache(self.backend.executor, layers, self.num_ctx, kv_dtype)
        except OutOfMemory as error:
            each = sum(kv_dtype.nbytes(shape.key + shape.value) for shape in layers)
            raise OutOfMemory(
                f"num_ctx: {self.num_ctx} positions of {each} bytes do not fit: {error}; "
                "choose a smaller num_ctx",
                error.report,
            ) from None

    @overload
    def generate(
        self,
        prompt: str,
        *,
        stream: Literal[False] = False,
        system: str | None = None,
        raw: bool = False,
        options: SamplingOptions | None = None,
        num_predict: int = -1,
        stop: Sequence[str] = (),
    ) -> str: ...
    @overload
    def generate(
        self,
        prompt: str,
        *,
        stream: Literal[True],
        system: str | None = None,
        raw: bool = False,
        options: SamplingOptions | None = None,
        num_predict: int = -1,
        stop: Sequence[str] = (),
    ) -> Iterator[str]: ...
    def generate(
        self,
        prompt: str,
        *,
        stream: bool = False,
        system: str | None = None,
        raw: bool = False,
        options: SamplingOptions | None = None,
        num_predict: int = -1,
        stop: Sequence[str] = (),
    ) -> str | Iterator[str]:
        """Answer a prompt.

        Parameters
        ----------
        prompt : str
        stream : bool
            Give an iterator of pieces instead of the whole text.
        system : str or None
            System message; only a chat template has a place for it.
        raw : bool
            Continue the prompt as it is, without the chat template. Models without a template
            always do.
        options : SamplingOptions or None
        num_predict : int
            Most tokens to make; negative for as many as the context holds.
        stop : str or sequence of str
            Texts that end the answer.

        Raises
        ------
        ContextFull
            The prompt is longer than the context.
        BackendError
            The model was closed, or put to another use before the answer was at its end.
        """
        if raw or self.prompter.template is None:
            ids = self.prompter.raw(prompt)
        else:
            messages = [{"role": "system", "content": system}] if system else []
            ids = self.prompter.chat([*messages, {"role": "user", "content": prompt}])
        text = self._text(ids, options, num_predict, stop)
        return text if stream else "".join(text)

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        *,
        stream: Literal[False] = False,
        options: SamplingOptions | None = None,
        num_predict: int = -1,
        stop: Sequence[str] = (),
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> str: ...
    @overload
    def chat(
        self,
        messages: Sequence[Message],
        *,
        stream: Literal[True],
        options: SamplingOptions | None = None,
        num_predict: int = -1,
        stop: Sequence[str] = (),
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> Iterator[str]: ...
    def chat(
        self,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        options: SamplingOptions | None = None,
        num_predict: int = -1,
        stop: Sequence[str] = (),
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> str | Iterator[str]:
        """Answer a conversation; what the cache holds of it is not computed again.

        Parameters
        ----------
        messages : sequence of mappings
            Each with ``role`` and ``content``.
        stream, options, num_predict, stop
            See `generate`.
        tools, documents, chat_template_kwargs
            What the model's template may write beside the messages: see `Prompter.chat`.

        Raises
        ------
        TemplateError
            The model has no chat template, or it refuses the messages.
        ContextFull
            The conversation is longer than the context.
        """
        ids = self.prompter.chat(
            messages, tools=tools, documents=documents, chat_template_kwargs=chat_template_kwargs
        )
        text = self._text(ids, options, num_predict, stop)
        return text if stream else "".join(text)

    def tokens(
        self, prompt: Sequence[int], options: SamplingOptions | None = None, num_predict: int = -1
    ) -> Iterator[int]:
        """Tokens that follow a prompt of tokens."""
        stream = self._stream(options, num_predict)
        return self._alone(stream.run(self._known(prompt)))

    def _stream(self, options: SamplingOptions | None, num_predict: int) -> TokenStream:
        sampler = StepSampler(options or SamplingOptions(), self.vocabulary)
        stream = TokenStream(
            self.runner,
            self._session,
            sampler,
            self.tokenizer.eog_ids,
            self.num_ctx,
            index(num_predict),
            self.depth,
        )
        self.stats = stream.stats
        return stream

    def _text(
        self,
        ids: Sequence[int],
        options: SamplingOptions | None,
        num_predict: int,
        stop: Sequence[str],
    ) -> Iterator[str]:
        stream = self._stream(options, num_predict)
        stops = [text for text in ([stop] if isinstance(stop, str) else stop) if text]
        return pieces(self._alone(stream.run(ids)), self.tokenizer.stream(), stops, stream.stats)

    def _alone(self, items: Generator[Item]) -> Generator[Item]:
        """Let no other thread use or close the model while the next item is made."""
        try:
            while True:
                with self._use:
                    self._require_open()
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item
        finally:
            # A finaliser may run on any thread, where it must not wait for another.
            free = self._use.acquire(blocking=False)
            items.close()
            if free:
                self._use.release()

    def _require_open(self) -> None:
        if self._closed:
            raise BackendError(f"{self.backend.file.path}: the model was closed; load it again")

    def _known(self, tokens: Sequence[int]) -> list[int]:
        rows, ids = self.vocabulary, [index(token) for token in tokens]
        wrong = [i for i in ids if not 0 <= i < rows]
        if wrong:
            raise ModelError(f"tokens: {wrong[0]} is no token, the vocabulary has {rows}")
        return ids

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Scores of every vocabulary entry after each token: (tokens, vocabulary).

        Raises
        ------
        ContextFull
            There are more tokens than the context holds.
        ModelError
            A token is not in the vocabulary.
        """
        limit = self.backend.executor.capabilities.max_binding_nbytes // (4 * self.vocabulary)
        return self._rows("logits", self._known(tokens), self._logits, max(1, limit // 2))

    def embed(self, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors for texts: the mean of the last states, (texts, hidden).

        The file's ``pooling_type`` decides: 1 or none mean, 2 first token, 3 last token.

        Raises
        ------
        ContextFull
            A text has more tokens than the context holds.
        """
        pooling = self.backend.config.uint("pooling_type", 1)
        rows: list[NDArray[np.float32]] = []
        for text in [texts] if isinstance(texts, str) else texts:
            states = self._rows("embed", self.tokenizer.encode(text), HIDDEN, self.runner.chunk)
            pooled = {2: states[0], 3: states[-1]}.get(pooling, states.mean(axis=0))
            rows.append(pooled / max(float(np.linalg.norm(pooled)), 1e-12))
        return np.stack(rows) if rows else np.zeros((0, 0), np.float32)

    def _rows(
        self, asked: str, tokens: Sequence[int], head: Head, limit: int
    ) -> NDArray[np.float32]:
        """Results of `head` for every token, in passes of at most `limit` tokens."""
        if not 0 < len(tokens) <= self.num_ctx:
            raise ContextFull(
                f"{asked}: {len(tokens)} tokens, the context holds 1 to {self.num_ctx}"
            )
        with self._use:
            self._require_open()
            return self._computed(tokens, head, limit)

    def _computed(self, tokens: Sequence[int], head: Head, limit: int) -> NDArray[np.float32]:
        self._session.claim()
        self._session.tokens.clear()
        self.cache.remove(self._session.sequence)
        step = min(self.runner.chunk, limit)
        parts: list[NDArray[np.float32]] = []
        for start in range(0, len(tokens), step):
            part = tokens[start : start + step]
            work = Work(self._session.sequence, part, range(len(part)))
            parts.append(self.runner.run([work], head, {}).wait()[0][: len(part)])
        self._session.tokens += tokens
        return np.concatenate(parts)

    def memory_report(self) -> str:
        """Who holds how much device memory, as a table."""
        return self.backend.memory_report()

    def close(self) -> None:
        """Release the device, after the step that is under way; again is harmless."""
        with self._use:
            self._closed = True
            self.runner.close()
            self.cache.close()
            self.backend.close()
