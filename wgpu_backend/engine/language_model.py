"""A loaded language model: text, tokens, scores and embeddings of one context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from wgpu_backend.dtypes import DType
from wgpu_backend.engine.adapters import Adapters, Given, scaled_files
from wgpu_backend.engine.answers import Answers
from wgpu_backend.engine.conversation import Conversation
from wgpu_backend.engine.encoding import runner_of
from wgpu_backend.engine.generation import Stats
from wgpu_backend.engine.inspection import Inspection
from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.engine.runner import Head, Runner
from wgpu_backend.engine.sessions import Neighbour, Serving, Sessions
from wgpu_backend.engine.shown import Shown
from wgpu_backend.errors import (
    ContextFull,
    OutOfMemory,
    TokenizerError,
    Unclosed,
)
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.backend import Backend
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.layers import nbytes_per_position
from wgpu_backend.nn.kvcache.paged import BLOCK
from wgpu_backend.nn.model import Model, model_class
from wgpu_backend.ops.sampling.host import Spelling
from wgpu_backend.text.grammar import GrammarVocabulary
from wgpu_backend.text.tokenizer import Tokenizer

DEFAULT_CONTEXT = 4096
MAX_CONTEXT = 1 << 24  # positions; tables of blocks are made for all of them
Item = TypeVar("Item")
LONG_SEQUENCES = 4  # that caches which forget have room for at their longest


def _depth(device: DeviceInfo) -> int:
    """Steps under way that suit a device: NumPy computes at once, a rasteriser's submit blocks."""
    return {"cpu": 1, "software": 2}.get(device.kind, 4)


class LanguageModel(Shown, Answers, Inspection):
    """A model with its tokenizer, cache and recorded steps.

    Attributes
    ----------
    backend : Backend
    model : Model
    tokenizer : Tokenizer
    prompter : Prompter
        Renders conversations.
    grammars : GrammarVocabulary
        Fits grammars to the tokens.
    spelling : Spelling
        Knows how tokens spell texts.
    runner : Runner
        Runs passes; its clock tells host time.
    depth : int
        Steps of a generation that are under way at most, 1 to 8; of brief ones, which go in pairs,
        up to two pairs. With 1 the device waits while the host looks at each token; the tokens are
        the same.
    num_parallel : int
        Contexts of `num_ctx` positions that the cache has room for.
    stats : Stats
        Of the last generation.
    """

    def __init__(
        self, backend: Backend, num_ctx: int | None, kv_dtype: DType, num_parallel: int = 1
    ) -> None:
        self.backend = backend
        self.num_parallel = num_parallel
        self.tokenizer = Tokenizer.of_file(backend.file)
        self.model: Model = model_class(backend.config)(backend)
        vocabulary = self._checked_vocabulary()
        self.grammars = GrammarVocabulary(self.tokenizer, vocabulary)
        self.spelling = Spelling(self.tokenizer)
        self.num_ctx = self._context(num_ctx)
        self.model.fit_context(self.num_ctx)
        self.cache = self._cache(kv_dtype)
        self.prompter = Prompter(backend.config, self.tokenizer)
        self.runner = runner_of(self.model, self.cache)
        self._runners = [self.runner]
        self.depth = _depth(self.device)
        self.stats = Stats()
        name, ends = str(backend.file.path), self.tokenizer.eog_ids
        serving = Serving(name, vocabulary, ends, self.num_ctx, self.spelling)
        self._sessions = Sessions(self.runner, serving)
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
    def config(self) -> Config:
        """Keys and values of the model's file."""
        return self.backend.config

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
            sequences = max(LONG_SEQUENCES, self.num_parallel)
            return self.model.make_cache(executor, sequences, self._positions(), kv_dtype)
        except OutOfMemory as error:
            each = nbytes_per_position(self.model.cache_layers(), kv_dtype)
            raise OutOfMemory(
                f"num_ctx: {self._positions()} positions of {each} bytes do not fit: {error}; "
                f"choose a smaller num_ctx{' or num_parallel' if self.num_parallel > 1 else ''}",
                error.report,
            ) from None

    def _positions(self) -> int:
        """Positions over all sequences; each of several has whole blocks of its own."""
        blocks = -(-self.num_ctx // BLOCK)
        return self.num_ctx if self.num_parallel == 1 else self.num_parallel * blocks * BLOCK

    def attach(self, neighbour: Neighbour) -> Runner:
        """Let an engine share the cache, with sequences whose numbers no session has.

        Returns
        -------
        Runner
            For its passes, with token slots of its own; closed with the model, or by `detach`.
        """

        def attached() -> Runner:
            self._sessions.neighbours.append(neighbour)
            self._runners.append(runner_of(self.model, self.cache))
            return self._runners[-1]

        return self.alone(attached)

    def detach(self, neighbour: Neighbour, runner: Runner) -> None:
        """End what `attach` began; nothing where the model was closed."""

        def detached() -> None:
            if runner in self._runners:
                self._runners.remove(runner)
                self._sessions.neighbours.remove(neighbour)
                runner.close()

        self._sessions.turns.take(detached)

    def alone(self, act: Callable[[], Item]) -> Item:
        """Run something while no other thread uses or closes the model; threads take turns.

        Raises
        ------
        BackendError
            The model was closed.
        """
        return self._sessions.alone(self._session, act)

    def give_room(self) -> bool:
        """Forget what the session idle for longest keeps in the cache; False if none has any."""
        return self._sessions.give_room()

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

    @property
    def loras(self) -> Sequence[tuple[str, float]]:
        """Names of the files of LoRA adapters that are set, with their scales."""
        return [(path.name, scale) for path, scale in self._adapters.loras]

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
        for runner in self._runners:
            runner.forget_variants()
        self._adapters.unload()

    def memory_report(self) -> str:
        """Who holds how much device memory, as a table."""
        return self.backend.memory_report()

    def close(self) -> None:
        """Release the device, after the step that is under way; again is harmless."""
        self._sessions.close(self._release)

    def _release(self) -> None:
        self._unclosed.silence()
        while self._runners:
            self._runners.pop().close()
        self._adapters.close()
        self.cache.close()
        self.backend.close()
