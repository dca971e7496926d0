"""Engine: answers many requests at once with one model."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Literal, TypeVar, Unpack

from wgpu_backend.engine.answers import Messages
from wgpu_backend.engine.arguments import conversation, shown, within
from wgpu_backend.engine.batching.completion import Ticket
from wgpu_backend.engine.batching.core import Core
from wgpu_backend.engine.batching.draft_model import DraftModel
from wgpu_backend.engine.batching.drafts import Drafter, Drafts, require_cuttable
from wgpu_backend.engine.batching.generation import Generation, Mailbox
from wgpu_backend.engine.batching.intake import Intake
from wgpu_backend.engine.batching.ngrams import NGrams
from wgpu_backend.engine.batching.request import Request, RequestFields
from wgpu_backend.engine.batching.results import EngineStatus
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.runner import CHUNK
from wgpu_backend.engine.sessions import MOST_SESSIONS as MOST_SLOTS
from wgpu_backend.engine.step_sampler import MOST_AHEAD
from wgpu_backend.errors import OptionError, Unclosed
from wgpu_backend.nn.kvcache.saving import Saved

Item = TypeVar("Item")
MAX_QUEUE = 512  # Ollama's
COMPILERS = 2  # grammars that are compiled at once
DRAFT_TOKENS = 3  # with the one before them four columns, which few-column kernels make at once


class Engine:
    """Answers requests, which join and leave a common batch between steps.

    One thread runs the model; all methods may be called from any thread, and none but `close` and
    `status` waits for it. The model's own methods work beside the engine, in turns with its steps.

    Use it as a context manager, or `close` it, before the model.

    Parameters
    ----------
    model : LanguageModel
        Loaded with ``num_parallel`` for as many contexts as are to be full at once.
    num_parallel : int or None
        Slots: choices that are made at once, 1 to 32; None for what the model was loaded with.
    batch_tokens : int
        Tokens of a step at most, of prompts and answers together. Fewer make steps shorter and
        prompts slower.
    max_queue : int
        Choices that may wait for a slot; see `QueueFull`.
    prefix_cache : bool
        Keep what was computed, for prompts that begin alike.
    host_cache : int
        Bytes of the host's memory for what was computed and has no room on the device any more; 0
        for none. Copies are in f32; a prompt that begins as one is brought back, not computed.
    deterministic : bool
        A request with a seed gives the same tokens alone or among others, whatever the batch. All
        passes have one of two shapes, so that a token's last bits do not depend on who is beside
        it: a step costs what one of `num_parallel` answers costs, a prompt whole passes of
        `batch_tokens`. Not on device ``cpu``: NumPy's products give a row other last bits in
        another place of the batch.

    draft : LanguageModel, str or None
        What guesses tokens, which one pass then computes together: ``"ngram"`` looks up what
        followed the same tokens before, in the prompt or the answer; a smaller model of the same
        tokens writes along. The engine does not close it. Tokens are chosen as they are without.
    draft_tokens : int
        Tokens guessed at once behind each answer, 1 to 7.

    Attributes
    ----------
    model : LanguageModel
    num_parallel, max_queue : int

    Raises
    ------
    OptionError
        An argument is of the wrong kind, or outside its range; the device cannot be deterministic.
    ModelError
        The model is an encoder, which makes no tokens.
    BackendError
        The model was closed.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        num_parallel: int | None = None,
        batch_tokens: int = CHUNK,
        max_queue: int = MAX_QUEUE,
        prefix_cache: bool = True,
        host_cache: int = 0,
        deterministic: bool = False,
        draft: LanguageModel | Literal["ngram"] | None = None,
        draft_tokens: int = DRAFT_TOKENS,
    ) -> None:
        slots = model.num_parallel if num_parallel is None else num_parallel
        self.num_parallel = within("num_parallel", slots, MOST_SLOTS)
        self.max_queue = within("max_queue", max_queue, 1 << 20, 0)
        budget = within("batch_tokens", batch_tokens, CHUNK, self.num_parallel)
        model.model.require_logits()
        if deterministic:
            _require_steady(model)
        guessed = within("draft_tokens", draft_tokens, MOST_AHEAD - 1)
        drafts = Drafts() if draft is None else Drafts(_drafter(draft, model), guessed)
        self.model = model
        name = str(model.backend.file.path)
        self._ids = count(1)
        self._intake = Intake(name, self.num_parallel, self.max_queue)
        self._core = Core(
            model,
            self.num_parallel,
            budget,
            self._intake,
            reuse=prefix_cache,
            deterministic=deterministic,
            drafts=drafts,
            host_nbytes=within("host_cache", host_cache, 1 << 48, 0),
        )
        self._unclosed = Unclosed(f"engine of {name}")
        self._thread = threading.Thread(
            target=self._core.run, name="wgpu_backend engine", daemon=True
        )
        self._stop = weakref.finalize(self, self._core.inbox.put, None)
        self._stop.atexit = False
        self._compilers = ThreadPoolExecutor(COMPILERS, "wgpu_backend grammars")
        self._thread.start()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_ctx(self) -> int:
        """Positions of a request's context."""
        return self.model.num_ctx

    def submit(self, request: Request, mailbox: Mailbox | None = None) -> Generation:
        """Take a request in; returns at once.

        Parameters
        ----------
        request : Request
        mailbox : Mailbox or None
            Gets the events, in place of one that keeps them.

        Raises
        ------
        QueueFull
            As many wait as may; try again later.
        ContextFull
            The prompt is empty, or longer than the context.
        ModelError
            A token, or one of `logit_bias`, is not in the vocabulary.
        BackendError
            The engine or its model was closed.

        A grammar that cannot be used is told by the generation, as a GrammarError.
        """
        tokens = request.fitting(self.num_ctx, self.model.vocabulary)
        if request.prompt_logprobs and self.model.model.prompt_encoder() is not None:
            raise OptionError(
                f"prompt_logprobs: {self.model.backend.file.path} reads prompts with an encoder, "
                "which tells nothing of how likely they are"
            )
        ticket = Ticket(next(self._ids), request, tokens, mailbox or Mailbox(request.n))
        ticket.scales = request.scales(self.model.adapters.scales)
        if ticket.scales is not None and self.model.model.prompt_encoder() is not None:
            raise OptionError("lora: needs the scales that are set for a model with an encoder")
        generation = Generation(ticket.id, request, ticket.mailbox, self._core.inbox.put)
        self._intake.take(request.n, lambda: self._put(ticket))
        return generation

    def _put(self, ticket: Ticket) -> None:
        """Hand a ticket to the engine's thread, which is told when what it waits for is made."""
        grammar, options = ticket.request.grammar, ticket.request.options
        if grammar is not None:
            ticket.matcher = self._compilers.submit(self.model.grammars.matcher, grammar)
        if options.dries:
            ticket.breakers = self._compilers.submit(self.model.spelling.of, options)
        self._core.inbox.put(ticket)
        for each in ticket.waits_for:
            each.add_done_callback(lambda _: self._core.inbox.put(_nothing))

    def complete(self, prompt: str | Sequence[int], **fields: Unpack[RequestFields]) -> Generation:
        """Continue a text, or tokens, as they are.

        Parameters
        ----------
        prompt : str or sequence of int
        **fields
            Those of a `Request`.

        Raises
        ------
        BackendError
            As `submit`; OptionError for a field.
        """
        raw = self.model.prompter.raw
        tokens = raw(prompt) if isinstance(prompt, str) else prompt
        return self.submit(Request.of(tokens, **fields))

    def chat(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        **fields: Unpack[RequestFields],
    ) -> Generation:
        """Answer a conversation.

        Parameters
        ----------
        messages : sequence of mappings
            Each with ``role`` and ``content``; a text alone is what the user says.
        tools, documents, chat_template_kwargs
            What the model's template may write beside the messages: see `Prompter.chat`.
        **fields
            Those of a `Request`.

        Raises
        ------
        TemplateError
            The model has no chat template, or it refuses the messages.
        BackendError
            As `submit`; OptionError for a field.
        """
        tokens = self.model.prompter.chat(
            conversation(messages),
            tools=tools,
            documents=documents,
            chat_template_kwargs=chat_template_kwargs,
        )
        return self.submit(Request.of(tokens, **fields))

    def status(self) -> EngineStatus:
        """What the engine does now, and has done; waits for the end of a step.

        Raises
        ------
        BackendError
            The engine or its model was closed.
        """
        return self._between(self._core.status)

    def clear_cache(self) -> None:
        """Forget what is kept of requests that have ended.

        Raises
        ------
        BackendError
            The engine or its model was closed.
        """
        self._between(self._core.forget)

    def kept_prefix(self, tokens: Sequence[int]) -> tuple[list[int], Saved | None]:
        """What the cache has of a text, on the host; see `PrefixCache.saved`."""
        return self._between(lambda: self._core.prefixes.saved(tokens))

    def take_prefix(self, tokens: Sequence[int], saved: Saved) -> None:
        """Keep what was saved of tokens for requests that begin with them."""
        self._between(lambda: self._core.prefixes.take(tokens, saved))

    def drop_prefix(self, tokens: Sequence[int]) -> int:
        """Forget what is kept of a text; how many tokens that were."""
        return self._between(lambda: self._core.prefixes.drop(tokens))

    def _between(self, act: Callable[[], Item]) -> Item:
        self._intake.require_open()
        return self.model.alone(act)

    def ended(self) -> Exception:
        """Wait until the engine has ended, and say why."""
        self._thread.join()
        return self._core.ending

    def close(self) -> None:
        """End the engine, after the step that is under way; again is harmless.

        Requests that are not done fail with a BackendError.
        """
        self._unclosed.silence()
        self._intake.close()
        self._stop()
        self._compilers.shutdown(wait=False, cancel_futures=True)
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _drafter(draft: object, model: LanguageModel) -> Drafter:
    """What guesses tokens for a model."""
    if draft != "ngram" and not isinstance(draft, LanguageModel):
        raise OptionError(f"draft: {shown(draft)}, needs 'ngram', a model that is loaded, or None")
    require_cuttable("draft", model)
    return DraftModel(draft, model) if isinstance(draft, LanguageModel) else NGrams()


def _require_steady(model: LanguageModel) -> None:
    """Refuse a device whose products depend on where in a batch a row is."""
    if model.device.kind == "cpu":
        raise OptionError(
            f"deterministic: device {model.device.id!r} multiplies with NumPy, which gives a row "
            "other last bits in another place of the batch; load the model on a GPU or a "
            "rasteriser (`wgpu-backend devices` lists them), or leave deterministic out"
        )


def _nothing() -> None:
    """Have the engine's thread look again at what waits."""
