"""A loaded language model: generation, logits, embeddings and inspection."""

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
# Positions; block tables are allocated for all of them.
MAX_CONTEXT = 1 << 24
Item = TypeVar("Item")
# Sequences of full length that caches with windows or states have room for.
LONG_SEQUENCES = 4


def _depth(device: DeviceInfo) -> int:
    """Return the steps in flight: NumPy is synchronous, and a rasteriser's submit blocks."""
    return {"cpu": 1, "software": 2}.get(device.kind, 4)


class LanguageModel(Shown, Answers, Inspection):
    """A loaded model with its tokenizer, KV cache and recorded graphs.

    Attributes
    ----------
    prompter : Prompter
        Renders conversations to tokens.
    grammars : GrammarVocabulary
        Compiles grammars for the vocabulary.
    spelling : Spelling
        Finds the tokens that spell a text.
    runner : Runner
        Runs passes; its clock measures host time.
    depth : int
        Steps of a generation in flight at most, 1 to 8; short steps are submitted in pairs, up to
        two pairs at a time. With 1 the device waits while the host processes each token. The tokens
        are the same.
    num_parallel : int
        Contexts of `num_ctx` positions that fit the cache.
    stats : Stats
        Statistics of the last generation.
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
        # Capturing `self` would make a reference cycle, and keep the model until a collection.
        model = self.model
        self._logits = Head("logits", lambda _, hidden: [model.logits(hidden)])
        self._adapters = Adapters(model)
        self._unclosed = Unclosed(f"model {backend.file.path}", backend)

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def device(self) -> DeviceInfo:
        """Device that the model runs on."""
        return self.backend.device

    @property
    def config(self) -> Config:
        """Metadata of the model's file."""
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
        """Return the positions of all sequences; several sequences need whole blocks each."""
        blocks = -(-self.num_ctx // BLOCK)
        return self.num_ctx if self.num_parallel == 1 else self.num_parallel * blocks * BLOCK

    def attach(self, neighbour: Neighbour) -> Runner:
        """Let an engine share the cache, using sequence numbers that no session has.

        Returns
        -------
        Runner
            Runner of the engine's passes, with token slots of its own; closed by `detach` or with
            the model.
        """

        def attached() -> Runner:
            self._sessions.neighbours.append(neighbour)
            self._runners.append(runner_of(self.model, self.cache))
            return self._runners[-1]

        return self.alone(attached)

    def detach(self, neighbour: Neighbour, runner: Runner) -> None:
        """Undo `attach`; does nothing if the model was closed."""

        def detached() -> None:
            if runner in self._runners:
                self._runners.remove(runner)
                self._sessions.neighbours.remove(neighbour)
                runner.close()

        self._sessions.turns.take(detached)

    def alone(self, act: Callable[[], Item]) -> Item:
        """Run a function while no other thread uses or closes the model; threads queue in order.

        Raises
        ------
        BackendError
            The model was closed.
        """
        return self._sessions.alone(self._session, act)

    def give_room(self) -> bool:
        """Clear the cached prefix of the least recently used idle session; return False if none."""
        return self._sessions.give_room()

    def session(self) -> Conversation:
        """Begin an independent conversation with its own part of the cache.

        Returns
        -------
        Conversation
            It has the model's methods for answers. Close it, or use it as a context manager.

        Raises
        ------
        BackendError
            The model was closed, or has too many sessions.
        """
        return Conversation(self, self._sessions)

    @property
    def adapters(self) -> Adapters:
        """LoRA adapters and control vectors in use; see `set_adapters`."""
        return self._adapters

    @property
    def loras(self) -> Sequence[tuple[str, float]]:
        """File names of the LoRA adapters in use, with their scales."""
        return [(path.name, scale) for path, scale in self._adapters.loras]

    def set_adapters(self, adapters: Given | Sequence[Given] = ()) -> None:
        """Apply these LoRA adapters to the model, and no others.

        The model's weights do not change. Files that were applied before are not read again, and
        a new scale needs no new graphs. The KV cache is cleared, since the changed model would
        compute other values; conversations are computed again when they continue.

        Parameters
        ----------
        adapters : sequence of path, or of (path, scale)
            GGUF files, one or several. A scale multiplies ``alpha / rank``.

        Raises
        ------
        GGUFError, ModelError
            A file is damaged, or does not fit the model; the former adapters stay in use.
        OutOfMemory
            A file does not fit on the device; the former adapters stay in use. `unload_adapters`
            may free memory.
        OptionError
            `adapters` is of another type.
        BackendError
            A stream is running.
        """
        given = scaled_files("adapters", adapters)
        self._sessions.change("set_adapters", lambda: self._adapters.set_loras(given))

    def set_control_vectors(
        self,
        control_vectors: Given | Sequence[Given] = (),
        layers: tuple[int, int] | None = None,
    ) -> None:
        """Apply these control vectors to the model, and no others.

        Their sum is added to the hidden states after each layer that they have a direction for.

        Parameters
        ----------
        control_vectors : sequence of path, or of (path, scale)
            GGUF files.
        layers : pair of int or None
            First and last layer to steer, counted from 0, without layer 0; None for all.

        Raises
        ------
        GGUFError, ModelError
            A file is damaged, or does not fit the model; the former vectors stay in use.
        OptionError
            `control_vectors` is of another type, or the model does not have these layers.
        BackendError
            A stream is running.
        """
        given = scaled_files("control_vectors", control_vectors)
        self._sessions.change(
            "set_control_vectors", lambda: self._adapters.set_control_vectors(given, layers)
        )

    def unload_adapters(self) -> None:
        """Release LoRA adapters that are loaded but not in use, with the graphs made for them."""
        self._sessions.alone(self._session, self._unload_adapters)

    def _unload_adapters(self) -> None:
        for runner in self._runners:
            runner.forget_variants()
        self._adapters.unload()

    def memory_report(self) -> str:
        """Return a table of the device memory by owner."""
        return self.backend.memory_report()

    def close(self) -> None:
        """Release the device after the current step; safe to call again."""
        self._sessions.close(self._release)

    def _release(self) -> None:
        self._unclosed.silence()
        while self._runners:
            self._runners.pop().close()
        self._adapters.close()
        self.cache.close()
        self.backend.close()
