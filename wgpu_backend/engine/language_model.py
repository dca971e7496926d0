"""A loaded language model: generation, logits, embeddings and inspection."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import DType
from wgpu_backend.engine.adapters import Adapters, Given, scaled_files
from wgpu_backend.engine.answers import Answers, Conversation
from wgpu_backend.engine.arguments import texts as checked_texts
from wgpu_backend.engine.arguments import token_ids
from wgpu_backend.engine.batching.completion import ModelInfo
from wgpu_backend.engine.graph_facts import Pass, describe_pass
from wgpu_backend.engine.media import Inserted, Part, Prompt
from wgpu_backend.engine.pooling import choose_pooling, pool_states, unit
from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.engine.runner import HIDDEN, SHORTEST, Head, Runner, bucket, make_runner
from wgpu_backend.engine.sessions import CacheUser, Sessions, Stats
from wgpu_backend.engine.towers import Towers
from wgpu_backend.errors import (
    ContextFull,
    DeviceLost,
    ModelError,
    OptionError,
    OutOfMemory,
    TokenizerError,
    Unclosed,
)
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.graph.html_tables import binary_size, html_table
from wgpu_backend.ml.backend import Backend, BackendMemory
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.placed_executor import PlacedExecutor
from wgpu_backend.ml.placement import Placement
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.attention_weights import attention_weights
from wgpu_backend.nn.batch import Batch, BatchShape, Work
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.layers import nbytes_per_position
from wgpu_backend.nn.kvcache.paged import BLOCK
from wgpu_backend.nn.model import Model, model_class
from wgpu_backend.ops.sampling.host import Spelling
from wgpu_backend.text.grammar import GrammarVocabulary
from wgpu_backend.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    # Pillow is imported with the first picture.
    from wgpu_backend.files.media.pictures import Source
    from wgpu_backend.files.media.sounds import Source as Sound

DEFAULT_CONTEXT = 4096
# Most tokens whose attention weights are returned: their number grows with the square.
MOST_ATTENDED = 128
# Decimals of attention weights in plain data, which keep its JSON short.
_DIGITS = 4
# Positions; block tables are allocated for all of them.
MAX_CONTEXT = 1 << 24
Item = TypeVar("Item")
# Sequences of full length that caches with windows or states have room for.
LONG_SEQUENCES = 4


def choose_context(model: Model, wanted: int | None) -> int:
    """Return the positions of a model's context: those wanted, or the default.

    Raises
    ------
    ContextFull
        The model does not have so many.
    """
    own = model.config.uint("context_length", DEFAULT_CONTEXT, at_least=1)
    limit = model.context_limit() or MAX_CONTEXT
    if wanted is None:
        # All positions get memory at once: a model's own context may not fit on the device.
        return min(own, limit, DEFAULT_CONTEXT)
    if 1 <= wanted <= limit:
        return wanted
    what = "the model knows" if limit < MAX_CONTEXT else "needs"
    raise ContextFull(f"num_ctx: {wanted}, {what} 1 to {limit}")


def count_positions(num_ctx: int, num_parallel: int) -> int:
    """Return the positions of all sequences; several sequences need whole blocks each."""
    blocks = -(-num_ctx // BLOCK)
    return num_ctx if num_parallel == 1 else num_parallel * blocks * BLOCK


def _run_alone(sessions: Sessions) -> Callable[[Callable[[], Any]], Any]:
    """Return a function that runs others while no thread uses the model."""
    # Sessions know the towers by `ModelInfo`: a strong reference back would be a cycle.
    found = weakref.ref(sessions)

    def run(act: Callable[[], Any]) -> Any:  # noqa: ANN401
        own = found()
        return act() if own is None else own.alone(own.main, act)

    return run


def _depth(device: DeviceInfo) -> int:
    """Return the steps in flight: NumPy is synchronous, and a rasteriser's submit blocks."""
    return {"cpu": 1, "software": 2}.get(device.kind, 4)


class LanguageModel(Answers):
    """A loaded model with its tokenizer, KV cache and recorded graphs.

    Attributes
    ----------
    prompter : Prompter
        Renders conversations to tokens.
    grammars : GrammarVocabulary
        Compiles grammars for the vocabulary.
    spelling : Spelling
        Finds the tokens that spell a text.
    info : ModelInfo
        Properties that completions need.
    towers : Towers
        Its towers for pictures and sounds.
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
        self,
        backend: Backend,
        num_ctx: int | None,
        kv_dtype: DType,
        num_parallel: int = 1,
        mmproj: Path | None = None,
    ) -> None:
        self.backend = backend
        self.num_parallel = num_parallel
        self.tokenizer = Tokenizer.of_file(backend.file)
        self.model: Model = model_class(backend.config)(backend)
        vocabulary = self._checked_vocabulary()
        self.grammars = GrammarVocabulary(self.tokenizer, vocabulary)
        self.spelling = Spelling(self.tokenizer)
        self.num_ctx = choose_context(self.model, num_ctx)
        self.model.fit_context(self.num_ctx)
        self.cache = self._cache(kv_dtype)
        self.prompter = Prompter(backend.config, self.tokenizer)
        self.runner = make_runner(self.model, self.cache)
        self._runners = [self.runner]
        self.depth = _depth(self.device)
        self.stats = Stats()
        name = str(backend.file.path)
        self.towers = Towers(backend, self.model, mmproj)
        self.info = ModelInfo(
            name, self.tokenizer, vocabulary, self.num_ctx, self.spelling, self.towers
        )
        self._sessions = Sessions(self.runner, self.info)
        self.towers.alone = _run_alone(self._sessions)
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

    def __repr__(self) -> str:
        file, *facts = self._facts().values()
        return f"LanguageModel({file}: {', '.join(facts)})"

    def _repr_html_(self) -> str:
        return html_table(self._facts().items())

    def _facts(self) -> dict[str, str]:
        file, info = self.backend.file, self.backend.device
        tensors = file.tensors.values()
        size = binary_size(sum(tensor.nbytes for tensor in tensors))
        count = sum(math.prod(tensor.shape) for tensor in tensors)
        types = dict.fromkeys(tensor.dtype.name for tensor in tensors)
        return {
            "file": str(file.path),
            "architecture": file.config.architecture,
            "weights": f"{count / 1e6:.1f} M in {size} of {'/'.join(types)}",
            "context": f"{self.num_ctx} positions",
            "device": f"{info.id} {info.name}",
        }

    @property
    def device(self) -> DeviceInfo:
        """Device that the model runs on."""
        return self.backend.device

    @property
    def placement(self) -> Placement:
        """Device of each layer."""
        return self.backend.placement(len(self.model.cache_layers()))

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

    def _cache(self, kv_dtype: DType) -> Cache:
        executor = self.backend.executor
        positions = count_positions(self.num_ctx, self.num_parallel)
        try:
            sequences = max(LONG_SEQUENCES, self.num_parallel)
            return self.model.make_cache(executor, sequences, positions, kv_dtype)
        except OutOfMemory as error:
            each = nbytes_per_position(self.model.cache_layers(), kv_dtype)
            raise OutOfMemory(
                f"num_ctx: {positions} positions of {each} bytes do not fit: {error}; "
                f"choose a smaller num_ctx{' or num_parallel' if self.num_parallel > 1 else ''}",
                error.report,
            ) from None

    def attach(self, user: CacheUser) -> Runner:
        """Let an engine share the cache, using sequence numbers that no session has.

        Returns
        -------
        Runner
            Runner of the engine's passes, with token slots of its own; closed by `detach` or with
            the model.
        """

        def attach_runner() -> Runner:
            self._sessions.cache_users.append(user)
            self._runners.append(make_runner(self.model, self.cache))
            return self._runners[-1]

        return self.alone(attach_runner)

    def detach(self, user: CacheUser, runner: Runner) -> None:
        """Undo `attach`; does nothing if the model was closed."""

        def detach_runner() -> None:
            if runner in self._runners:
                self._runners.remove(runner)
                self._sessions.cache_users.remove(user)
                runner.close()

        self._sessions.turns.take(detach_runner)

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

    def logits(
        self,
        tokens: str | Sequence[int],
        *,
        images: Sequence[Source] = (),
        audio: Sequence[Sound] = (),
    ) -> NDArray[np.float32]:
        """Compute the logits after each token and row: (tokens, vocabulary).

        Parameters
        ----------
        tokens : str or sequence of int
            Token ids, or a raw prompt. With pictures a text, which has the model's own picture
            token or ``<__media__>`` where each stands, or they come first.
        images : sequence of path, bytes, Pillow image or array
            Pictures.
        audio : sequence of path, bytes or array
            Sounds, which stand in the text like pictures.

        Raises
        ------
        ContextFull
            There are more tokens than the context holds.
        ModelError
            A token is not in the vocabulary.
        """
        rows = self._sessions.vocabulary
        # One binding must hold the rows, 4 bytes for each logit. `limit` is halved below, because a
        # pass pads its rows to a power of two.
        limit = self.backend.executor.capabilities.max_binding_nbytes // (4 * rows)
        prompt = self._raw_prompt(tokens, images, audio)
        ids = prompt.tokens
        inserted = self.towers.insert(prompt.placed) if prompt.placed else None
        limit = max(1, limit // 2)
        found = self._rows("logits", ids, self._logits, limit, inserted=inserted)
        return found[:, : self.model.logit_cols]

    def _raw_prompt(
        self, tokens: str | Sequence[int], images: Sequence[Source], audio: Sequence[Sound] = ()
    ) -> Prompt:
        parts = [Part("image", image) for image in images]
        parts += [Part("audio", sound) for sound in audio]
        if not isinstance(tokens, str):
            if parts:
                name = "images" if images else "audio"
                raise OptionError(
                    f"{name}: need a text prompt, which marks their places, not token ids"
                )
            return Prompt(token_ids(tokens, self._sessions.vocabulary))
        if not parts:
            return Prompt(self.prompter.raw(tokens))
        return self.towers.raw(self.prompter, tokens, parts)

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
        self,
        texts: str | Sequence[str] = (),
        *,
        images: Sequence[Source] = (),
        pooling: str | None = None,
    ) -> NDArray[np.float32]:
        """Embed texts, then pictures, as unit vectors: (texts + pictures, hidden).

        A text's vector is pooled from the states of its tokens.

        Parameters
        ----------
        images : sequence of path, bytes, Pillow image or array
            Pictures, for models such as CLIP whose texts and pictures share one space.
        pooling : str or None
            ``"mean"``, ``"cls"`` (the first token), ``"last"``, ``"max"``, ``"weightedmean"`` or
            ``"mean_sqrt_len"``; the results of several joined by ``+`` are concatenated. None for
            the file's own pooling, or the mean.

        Raises
        ------
        ContextFull
            A text has more tokens than the context holds.
        MediaError
            A picture cannot be read.
        OptionError
            The pooling is unknown, or the model embeds no pictures.
        ModelError
            The file's own pooling gives no vector of a text.
        """
        how = choose_pooling(self.backend.config, pooling)
        rows: list[NDArray[np.float32]] = []
        for text in checked_texts("texts", texts):
            found = self._pool("embed", self.model.fit_text(self.tokenizer.encode(text)), how)
            rows.append(unit(self._apply_head(found, self.model.vector)))
        rows += [unit(self.towers.embed(Part("image", image))) for image in images]
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
        # Before a tokenizer refuses the pair, whose message would be about tokens.
        if not self.model.is_reranker:
            raise self.model.not_a_reranker()
        scores: list[float] = []
        for text in checked_texts("texts", texts):
            ids, types = self.prompter.pair(query, text)
            how = self.model.scored_pooling
            found = self._pool("rerank", ids, how, self._make_types(types))
            scores.append(float(self._apply_head(found, self.model.score)[0]))
        return np.array(scores, np.float32)

    def _pool(
        self,
        asked: str,
        tokens: Sequence[int],
        pooling: str,
        inputs: Mapping[str, NDArray[np.int32]] | None = None,
    ) -> NDArray[np.float32]:
        """Compute one pooled state of a text: (hidden,)."""
        return pool_states(self._rows(asked, tokens, HIDDEN, self.runner.chunk, inputs), pooling)

    def _apply_head(
        self, state: NDArray[np.float32], make: Callable[[Tensor], Tensor]
    ) -> NDArray[np.float32]:
        """Apply a model's head to one state of a text."""

        def compute() -> NDArray[np.float32]:
            with Context(self.backend.executor) as context:
                x = context.from_numpy(state[None])
                y = make(x)
                return state if y is x else y.numpy()[0]

        return self._sessions.alone(self._session, compute)

    def _make_types(self, types: Sequence[int]) -> Mapping[str, NDArray[np.int32]]:
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
        inserted: Inserted | None = None,
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
                self._session,
                lambda: self._compute(asked, tokens, head, limit, inputs or {}, inserted),
            )
        )

    def _compute(
        self,
        asked: str,
        tokens: Sequence[int],
        head: Head,
        limit: int,
        inputs: Mapping[str, NDArray[np.int32]],
        inserted: Inserted | None,
    ) -> NDArray[np.float32]:
        self._session.claim(f"{asked}()")
        # Refilled only after the last pass, so that after an error no token counts as cached.
        self._session.tokens.clear()
        self.cache.remove(self._session.sequence)
        step = min(self.runner.chunk, limit)
        parts: list[NDArray[np.float32]] = []
        if inserted is not None:
            inserted.rows |= {i: self.towers.encode(p) for i, p in enumerate(inserted.placed)}
        start = 0
        while start < len(tokens):
            count = min(step, len(tokens) - start)
            count = count if inserted is None else inserted.whole(start, count)
            part = tokens[start : start + count]
            given = {name: array[start : start + count] for name, array in inputs.items()}
            work = Work(self._session.sequence, part, range(len(part)), given)
            work = work if inserted is None else inserted.work(work, start)
            start += count
            run = partial(self.runner.run, [work], head, {})
            # The rows after those of the part are padding.
            parts.append(self._sessions.with_room(self._session, run).wait()[0][: len(part)])
        self._session.tokens += tokens
        return np.concatenate(parts)

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
        # First, because recorded graphs bind the buffers that `unload` frees.
        for runner in self._runners:
            runner.forget_variants()
        self._adapters.unload()

    def attention(self, tokens: Sequence[int], layer: int) -> NDArray[np.float32]:
        """Compute the attention weights between the tokens of a text in one layer.

        Parameters
        ----------
        tokens : sequence of int
            At most 128 token ids.

        Returns
        -------
        (heads, tokens, tokens), f32
            Rows sum to 1, less the share of an attention sink.

        Raises
        ------
        ContextFull
            There are no tokens, or too many.
        OptionError
            The model does not have this layer.
        ModelError
            The layer has no attention, or not of a kind that can be shown.
        """
        ids = token_ids(tokens, self._sessions.vocabulary)
        most = min(MOST_ATTENDED, self.runner.chunk, self.num_ctx)
        if not 0 < len(ids) <= most:
            raise ContextFull(f"attention: {len(ids)} tokens, needs 1 to {most}")
        layers = self.backend.config.uint("block_count", 1)
        if not 0 <= layer < layers:
            raise OptionError(f"layer: {layer}, the model has 0 to {layers - 1}")
        if self.model.prompt_encoder() is not None:
            raise ModelError("attention: not supported for encoder-decoder models")
        turn = self._session.calls.take
        session = self._session
        return turn(lambda: self._sessions.alone(session, lambda: self._attend(ids, layer)))

    def _attend(self, ids: Sequence[int], layer: int) -> NDArray[np.float32]:
        count = len(ids)

        def build(batch: Batch, _: Tensor) -> Sequence[Tensor]:
            if layer not in batch.attended:
                raise ModelError(f"attention: layer {layer} does not attend to tokens")
            return [attention_weights(batch.attended[layer], count)]

        self._session.claim("attention()")
        self._session.tokens.clear()
        self.cache.remove(self._session.sequence)
        works = [Work(self._session.sequence, ids, range(count))]
        # A runner of its own, so that its graph is released afterwards.
        runner = make_runner(self.model, self.cache)
        try:
            run = partial(runner.run, works, Head("attention", build), {})
            found = self._sessions.with_room(self._session, run).wait()[0]
        finally:
            runner.close()
            # Layers after `layer` may not have written their keys and values.
            self.cache.remove(self._session.sequence)
        # Tokens and positions are padded to the graph's shape.
        return np.ascontiguousarray(found[:count, :, :count].transpose(1, 0, 2))

    def graphs(self, prompt: int) -> list[Pass]:
        """Record the graphs of a prompt of `prompt` tokens and of the next step; run nothing."""
        # The step after the prompt writes one more position, and attends to it.
        longest = min(bucket(prompt + 1, SHORTEST), self.cache.positions)
        step, whole = (
            BatchShape(1, 1, 1, longest),
            BatchShape(bucket(prompt), 1, 1, longest),
        )

        def record() -> list[Pass]:
            runner = make_runner(self.model, self.cache)
            try:
                return [
                    self._record_pass(runner, f"decode step at {prompt}", step),
                    self._record_pass(runner, f"prompt of {prompt} tokens", whole),
                ]
            finally:
                runner.close()

        return self._sessions.alone(self._session, record)

    def _record_pass(self, runner: Runner, name: str, shape: BatchShape) -> Pass:
        outputs: list[Tensor] = []

        def build(_: Batch, hidden: Tensor) -> Sequence[Tensor]:
            model = self.model
            outputs.append(model.logits(hidden).argmax() if model.has_logits else hidden)
            return outputs

        made = runner.recorded(shape, Head(f"graph of a {name}", build))
        can = self.backend.executor.capabilities
        return describe_pass(name, made.scheduled, made.plan, outputs, made.dispatches, can)

    def backend_memory(self) -> BackendMemory:
        """Return the bytes in use, by device and layer; towers that are loaded count at the end."""
        return self.backend.backend_memory(self.towers.backend)

    def memory(self) -> Mapping[str, int]:
        """Return the bytes of weights, cache and recorded graphs on the device."""
        found = self._sessions.alone(self._session, self.backend_memory)
        parts = (found.cpu, *found.gpus)
        return {
            "weights": sum(sum(part.weights) for part in parts),
            "cache": sum(sum(part.cache) for part in parts),
            "graphs": sum(part.graph for part in parts),
        }

    def inspect(self, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a view of the model as plain data, which can be sent between processes.

        Parameters
        ----------
        what : str
            ``attention`` with `tokens` and `layer`, ``graphs`` with `prompt`, or ``memory``.

        Raises
        ------
        OptionError
            `what` is not a known view.
        """
        match what:
            case "attention":
                weights = self.attention(given["tokens"], given["layer"])
                # In f64: most rounded numbers would print with many digits if they were f32.
                rounded = np.round(weights.astype(np.float64), _DIGITS).tolist()
                return {"layers": self.backend.config.uint("block_count", 1), "weights": rounded}
            case "graphs":
                # One pass reads at most `chunk` tokens, and the step after it needs a position.
                prompt = min(given["prompt"], self.runner.chunk, self.num_ctx - 1)
                return {"passes": [asdict(each) for each in self.graphs(prompt)]}
            case "memory":
                return dict(self.memory())
            case _:
                raise OptionError(f"inspect: {what[:40]!r}, needs attention, graphs or memory")

    def memory_report(self) -> str:
        """Return a table of the device memory by owner."""
        return self.backend.memory_report()

    def close(self) -> None:
        """Release the device after the current step; safe to call again."""
        self._sessions.close(self._release)

    @property
    def lost(self) -> DeviceLost | None:
        """Return the error of a node's device that was lost, if it may be opened again."""
        executor = self.backend.executor
        return executor.lost if isinstance(executor, PlacedExecutor) else None

    def reopen(self) -> None:
        """Open lost devices of other nodes again; sessions compute their texts again.

        Raises
        ------
        DeviceLost
            One cannot be opened.
        BackendError
            A stream is running.
        """
        executor = self.backend.executor
        if isinstance(executor, PlacedExecutor):
            self._sessions.change("reopen", lambda: executor.reopen() is None)

    def _release(self) -> None:
        self._unclosed.silence()
        while self._runners:
            self._runners.pop().close()
        self._adapters.close()
        self.towers.close()
        self.cache.close()
        # Last, because runners, adapters and cache free buffers on the device.
        self.backend.close()
