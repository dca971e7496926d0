"""The engine: it answers many requests at once with one model."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Literal, TypeVar, Unpack

from wgpu_backend.engine.answers import Messages
from wgpu_backend.engine.arguments import conversation, within
from wgpu_backend.engine.batching.completion import Ticket
from wgpu_backend.engine.batching.core import Core
from wgpu_backend.engine.batching.draft_model import DraftModel, require_cuttable
from wgpu_backend.engine.batching.drafts import Drafter, Drafts, NGrams
from wgpu_backend.engine.batching.generation import Generation, Mailbox
from wgpu_backend.engine.batching.intake import Intake
from wgpu_backend.engine.batching.request import Request, RequestFields
from wgpu_backend.engine.batching.results import EngineStatus
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.media import PART_KINDS, Illustrations, place_in_chat
from wgpu_backend.engine.runner import CHUNK
from wgpu_backend.engine.sessions import MOST_SESSIONS as MOST_SLOTS
from wgpu_backend.engine.step_sampler import MOST_AHEAD
from wgpu_backend.errors import OptionError, Unclosed, describe
from wgpu_backend.nn.kvcache.saving import Saved

Item = TypeVar("Item")
# Ollama's default.
MAX_QUEUE = 512
# Grammars that are compiled at once.
COMPILERS = 2
# With the token before them these are four columns, which the few-column kernels compute at once.
DRAFT_TOKENS = 3


class Engine:
    """An engine that answers requests in a common batch, which they join and leave between steps.

    One thread runs the model. All methods may be called from any thread; only `close` and `status`
    wait for it. The model's own methods still work, between the engine's steps.

    Use it as a context manager, or `close` it, before the model.

    Parameters
    ----------
    model : LanguageModel
        A model loaded with ``num_parallel`` full contexts.
    num_parallel : int or None
        Slots: choices that run at once, 1 to 32; None for the model's ``num_parallel``.
    batch_tokens : int
        Most tokens of a step, of prompts and answers together. A lower value makes steps shorter
        and prompts slower.
    max_queue : int
        Choices that may wait for a slot; see `QueueFull`.
    prefix_cache : bool
        Keep computed prefixes for later prompts with the same beginning.
    host_cache : int
        Bytes of host memory for prefixes that no longer fit on the device; 0 for none. Copies are
        in f32, and are restored for prompts that begin with them.
    deterministic : bool
        A request with a seed gives the same tokens in any batch. All passes have one of two shapes,
        so that a token's last bits do not depend on other requests. A step then costs as much as
        one with `num_parallel` answers, and a prompt as much as whole passes of `batch_tokens`.
        Not on device ``cpu``: with NumPy the last bits of a row depend on its place in the batch.

    draft : LanguageModel, str or None
        Source of draft tokens for speculative decoding: ``"ngram"`` looks up the continuation of
        the newest tokens in the prompt and answer; or a smaller model with the same vocabulary,
        which the engine does not close. It does not change which tokens are chosen.
    draft_tokens : int
        Draft tokens for each answer at once, 1 to 7.

    Raises
    ------
    OptionError
        An argument is of the wrong kind or out of range, or the device cannot be deterministic.
    ModelError
        The model is an encoder, which generates no tokens.
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
        """Positions in the context of a request."""
        return self.model.num_ctx

    def submit(self, request: Request, mailbox: Mailbox | None = None) -> Generation:
        """Submit a request, without waiting.

        Parameters
        ----------
        mailbox : Mailbox or None
            Receives the events; None for a new one that keeps them.

        Raises
        ------
        QueueFull
            The queue is full; try again later.
        ContextFull
            The prompt is empty, or longer than the context.
        ModelError
            A token of the prompt or of `logit_bias` is not in the vocabulary.
        BackendError
            The engine or its model was closed.

        OptionError
            A pass of fixed shape is too short for a picture.

        An unusable grammar is reported by the generation, as a GrammarError.
        """
        tokens = request.fitting(self.num_ctx, self.model.vocabulary)
        self._core.require_room(request.placed)
        if request.prompt_logprobs and self.model.model.prompt_encoder() is not None:
            raise OptionError(
                f"prompt_logprobs: {self.model.backend.file.path} reads prompts with an encoder, "
                "which computes no probabilities of its tokens"
            )
        ticket = Ticket(
            next(self._ids),
            request,
            tokens,
            mailbox or Mailbox(request.n),
            free_places=self._intake.give_back,
        )
        ticket.scales = request.scales(self.model.adapters.scales)
        if ticket.scales is not None and self.model.model.prompt_encoder() is not None:
            raise OptionError("lora: a model with an encoder takes only the scales that are set")
        generation = Generation(ticket.id, request, ticket.mailbox, self._core.inbox.put)
        self._intake.take(request.n, lambda: self._put(ticket))
        return generation

    def _put(self, ticket: Ticket) -> None:
        """Pass a ticket to the engine's thread, and wake it when the ticket's futures are done."""
        grammar, options = ticket.request.grammar, ticket.request.options
        if grammar is not None:
            ticket.matcher = self._compilers.submit(self.model.grammars.matcher, grammar)
        if options.dries:
            ticket.breakers = self._compilers.submit(self.model.spelling.of, options)
        self._core.inbox.put(ticket)
        for each in ticket.waits_for:
            each.add_done_callback(lambda _: self._core.inbox.put(_nothing))

    def complete(self, prompt: str | Sequence[int], **fields: Unpack[RequestFields]) -> Generation:
        """Continue a raw text or tokens.

        Parameters
        ----------
        **fields
            Fields of a `Request`.

        Raises
        ------
        BackendError
            See `submit`; OptionError for a field.
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
            Each with ``role`` and ``content``; a plain text is a message of the user. Pictures are
            parts or ``images``, see `LanguageModel.chat`.
        tools, documents, chat_template_kwargs
            Further inputs of the model's template; see `Prompter.chat`.
        **fields
            Fields of a `Request`.

        Raises
        ------
        TemplateError
            The model has no chat template, or it refuses the messages.
        BackendError
            See `submit`; OptionError for a field.
        """
        given = self.model.prompter.check_messages(conversation(messages), PART_KINDS)
        shown = Illustrations(given)
        towers = self.model.towers
        prompt = place_in_chat(
            self.model.prompter,
            shown,
            shown.messages,
            [towers.prepare(part) for part in shown.parts],
            tools=tools,
            documents=documents,
            chat_template_kwargs=chat_template_kwargs,
        )
        fields["placed"] = prompt.placed
        return self.submit(Request.of(prompt.tokens, **fields))

    def wake(self) -> None:
        """Make an idle engine check its devices now."""
        self._core.inbox.put(lambda: None)

    def status(self) -> EngineStatus:
        """Return the engine's state and counters; waits for the end of the current step.

        Raises
        ------
        BackendError
            The engine or its model was closed.
        """
        return self._between(self._core.status)

    def clear_cache(self) -> None:
        """Clear the prefix cache.

        Raises
        ------
        BackendError
            The engine or its model was closed.
        """
        self._between(self._core.forget)

    def kept_prefix(self, tokens: Sequence[int]) -> tuple[list[int], Saved | None]:
        """Copy the cached prefix of a text to the host; see `PrefixCache.saved`."""
        return self._between(lambda: self._core.prefixes.saved(tokens))

    def take_prefix(self, tokens: Sequence[int], saved: Saved) -> None:
        """Add a saved prefix to the cache, for requests that begin with its tokens."""
        self._between(lambda: self._core.prefixes.take(tokens, saved))

    def drop_prefix(self, tokens: Sequence[int]) -> int:
        """Drop the cached prefix of a text; return its number of tokens."""
        return self._between(lambda: self._core.prefixes.drop(tokens))

    def _between(self, act: Callable[[], Item]) -> Item:
        self._intake.require_open()
        return self.model.alone(act)

    def ended(self) -> Exception:
        """Wait until the engine has ended, and return the reason."""
        self._thread.join()
        return self._core.ending

    def close(self) -> None:
        """Stop the engine after the current step; safe to call again.

        Unfinished requests fail with a BackendError.
        """
        self._unclosed.silence()
        self._intake.close()
        self._stop()
        self._compilers.shutdown(wait=False, cancel_futures=True)
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _drafter(draft: object, model: LanguageModel) -> Drafter:
    """Make the source of draft tokens for a model."""
    if draft != "ngram" and not isinstance(draft, LanguageModel):
        raise OptionError(
            f"draft: {describe(draft)}, needs 'ngram', a model that is loaded, or None"
        )
    require_cuttable("draft", model)
    return DraftModel(draft, model) if isinstance(draft, LanguageModel) else NGrams()


def _require_steady(model: LanguageModel) -> None:
    """Raise if the device's products depend on a row's place in the batch."""
    if model.device.kind == "cpu":
        raise OptionError(
            f"deterministic: device {model.device.id!r} multiplies with NumPy, whose last bits "
            "depend on a row's place in the batch; load the model on a GPU or a "
            "rasteriser (`wgpu-backend devices` lists them), or leave deterministic out"
        )


def _nothing() -> None:
    """Wake the engine's thread, so that it checks the waiting requests."""
