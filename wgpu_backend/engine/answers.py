"""The methods that answer prompts and conversations, of a model and of its sessions."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Literal, cast, overload

from wgpu_backend.engine.arguments import (
    CallOptions,
    Options,
    check_options,
    conversation,
    describe,
    text,
    token_ids,
)
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import Event
from wgpu_backend.engine.media import PART_KINDS, Illustrations, Part, Prompt, place_in_chat
from wgpu_backend.engine.prompt import Message, Prompter, fit_conversation
from wgpu_backend.engine.sessions import Session, Sessions, Stats
from wgpu_backend.engine.towers import Towers
from wgpu_backend.errors import OptionError
from wgpu_backend.text.grammar import Grammar, GrammarVocabulary, Matcher
from wgpu_backend.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    # Pillow is imported with the first picture.
    from wgpu_backend.files.media.pictures import Source
    from wgpu_backend.files.media.sounds import Source as Sound

Messages = Sequence[Message] | Message | str
Format = Grammar | Mapping[str, object] | str
"""Format of an answer: a grammar, a JSON schema, or ``json``."""


class Answers:
    """The methods that answer prompts and keep the KV cache for the next prompt.

    Calls without ``stream=True`` wait for each other. A stream ends with an error when the next
    call or stream begins; concurrent streams need a session each.

    Attributes
    ----------
    prompter : Prompter
        Renders conversations to tokens.
    grammars : GrammarVocabulary
        Compiles grammars for the vocabulary.
    towers : Towers
        Towers for pictures and sounds.
    num_ctx : int
        Positions in the context.
    stats : Stats
        Statistics of the last generation.
    """

    tokenizer: Tokenizer
    prompter: Prompter
    grammars: GrammarVocabulary
    towers: Towers
    num_ctx: int
    depth: int
    stats: Stats
    _sessions: Sessions
    _session: Session

    @overload
    def generate(
        self,
        prompt: str,
        *,
        stream: Literal[False] = False,
        system: str | None = None,
        raw: bool = False,
        images: Sequence[Source] = (),
        audio: Sequence[Sound] = (),
        options: Options | None = None,
        num_predict: int | None = None,
        stop: str | Iterable[str] | None = None,
        format: Format | None = None,
    ) -> str: ...
    @overload
    def generate(
        self,
        prompt: str,
        *,
        stream: Literal[True],
        system: str | None = None,
        raw: bool = False,
        images: Sequence[Source] = (),
        audio: Sequence[Sound] = (),
        options: Options | None = None,
        num_predict: int | None = None,
        stop: str | Iterable[str] | None = None,
        format: Format | None = None,
    ) -> Iterator[str]: ...
    def generate(
        self,
        prompt: str,
        *,
        stream: bool = False,
        system: str | None = None,
        raw: bool = False,
        images: Sequence[Source] = (),
        audio: Sequence[Sound] = (),
        options: Options | None = None,
        num_predict: int | None = None,
        stop: str | Iterable[str] | None = None,
        format: Format | None = None,
    ) -> str | Iterator[str]:
        """Answer a prompt.

        Parameters
        ----------
        stream : bool
            Return an iterator of text pieces instead of the whole text.
        system : str or None
            System message; used only with a chat template.
        raw : bool
            Continue the prompt as it is, without the chat template. Always so for models without
            a template. Pictures stand at ``<__media__>`` or the model's own token for them.
        images : sequence of path, bytes, Pillow image or array
            Pictures that the prompt is about.
        audio : sequence of path, bytes or array
            Sounds that the prompt is about, see `files.media.sounds.load_sound`.
        options : SamplingOptions, mapping or None
            A mapping uses Ollama's names, including ``num_predict`` and ``stop``.
        num_predict : int or None
            Most tokens to make; None or negative for as many as the context holds.
        stop : str, iterable of str or None
            Texts that end the answer.
        format : Grammar, mapping, str or None
            Format of the answer: ``"json"``, a JSON schema, or a `Grammar`.

        Raises
        ------
        ContextFull
            The prompt is longer than the context.
        CacheFull
            Streams of other sessions fill the cache.
        OptionError
            An argument is of the wrong kind, out of range, or unknown.
        GrammarError
            `format` is not a usable grammar, or no token continues the answer.
        BackendError
            The model was closed, or another call took the session over before the stream ended.
        """
        how = check_options(options, num_predict, stop)
        prompt = text("prompt", prompt)
        system = None if system is None else text("system", system)
        if raw or self.prompter.template is None:
            found = self._raw(prompt, images, audio)
        else:
            # Templates write a frame even for an empty system message, so that one is left out.
            messages = [{"role": "system", "content": system}] if system else []
            shown = {"images": _listed(images)} if images else {}
            parts = [{"type": "audio", "audio": each} for each in _listed(audio, "audio")]
            content = [*parts, {"type": "text", "text": prompt}] if parts else prompt
            found = self._render([*messages, {"role": "user", "content": content, **shown}])
        return self._answer("generate", found, how, stream=stream, form=format)

    def _raw(self, prompt: str, images: Sequence[Source], audio: Sequence[Sound]) -> Prompt:
        parts = [Part("image", each) for each in _listed(images)]
        parts += [Part("audio", each) for each in _listed(audio, "audio")]
        if not parts:
            return Prompt(self.prompter.raw(prompt))
        return self.towers.raw(self.prompter, prompt, parts)

    def _render(self, messages: Sequence[Message]) -> Prompt:
        """Render a conversation, with its pictures and sounds."""
        shown = Illustrations(messages)
        prepared = [self.towers.prepare(part) for part in shown.parts]
        return place_in_chat(self.prompter, shown, shown.messages, prepared)

    @overload
    def chat(
        self,
        messages: Messages,
        *,
        stream: Literal[False] = False,
        options: Options | None = None,
        num_predict: int | None = None,
        stop: str | Iterable[str] | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        format: Format | None = None,
    ) -> str: ...
    @overload
    def chat(
        self,
        messages: Messages,
        *,
        stream: Literal[True],
        options: Options | None = None,
        num_predict: int | None = None,
        stop: str | Iterable[str] | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        format: Format | None = None,
    ) -> Iterator[str]: ...
    def chat(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        options: Options | None = None,
        num_predict: int | None = None,
        stop: str | Iterable[str] | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        format: Format | None = None,
    ) -> str | Iterator[str]:
        """Answer a conversation; the part of it that is in the cache is not computed again.

        If the conversation and an answer do not fit the context, the oldest exchanges are left out;
        leading system messages stay. `Stats.dropped_messages` counts the messages left out.

        Parameters
        ----------
        messages : sequence of mappings
            Each with ``role`` and ``content``; a plain text is a message of the user. Contents may
            have parts: ``{"type": "text", "text": …}`` and ``{"type": "image", "image": …}`` with a
            path, bytes, Pillow image or array. A message may instead have a list of ``images``. A
            part ``{"type": "video", "video": [...], "fps": 2}`` has a list of pictures of one size.
        stream, options, num_predict, stop, format
            See `generate`.
        tools, documents, chat_template_kwargs
            Further inputs of the model's template; see `Prompter.chat`.

        Raises
        ------
        TemplateError
            The model has no chat template, or it refuses the messages.
        ContextFull
            The newest message is longer than the context.
        """
        how = check_options(options, num_predict, stop)
        shown = Illustrations(self.prompter.check_messages(conversation(messages), PART_KINDS))
        prepared = [self.towers.prepare(part) for part in shown.parts]
        render = partial(
            place_in_chat,
            self.prompter,
            shown,
            prepared=prepared,
            tools=tools,
            documents=documents,
            chat_template_kwargs=chat_template_kwargs,
        )
        found = fit_conversation(
            shown.messages, lambda some: render(some).tokens, self.num_ctx, how.num_predict
        )
        prompt = render(found.messages) if prepared else Prompt(found.tokens)
        return self._answer("chat", prompt, how, stream=stream, dropped=found.dropped, form=format)

    def tokens(
        self,
        prompt: Sequence[int],
        options: Options | None = None,
        num_predict: int | None = None,
    ) -> Iterator[int]:
        """Generate the tokens that follow a prompt of token ids, as a stream."""
        ids = token_ids(prompt, self._sessions.vocabulary)
        how = check_options(options, num_predict, None)
        return _tokens(self.events(Request(ids, how.options, how.num_predict), call="tokens"))

    def events(
        self,
        request: Request,
        *,
        depth: int | None = None,
        matcher: Matcher | None = None,
        call: str = "events",
    ) -> Generator[Event]:
        """Answer a request of one choice, and yield an event for each token.

        Parameters
        ----------
        depth : int or None
            Steps in flight at most; None for the model's.
        matcher : Matcher or None
            The request's grammar, compiled.
        call : str
            Name of the calling method, for messages.
        """
        depth = self.depth if depth is None else depth
        stream = self._sessions.stream(self._session, request, depth, call, matcher)
        # Before the first token: a caller may read the statistics while the stream runs.
        self.stats = stream.stats
        return self._sessions.items(self._session, stream.run())

    def _answer(
        self,
        call: str,
        prompt: Prompt,
        how: CallOptions,
        *,
        stream: bool,
        dropped: int = 0,
        form: Format | None = None,
    ) -> str | Iterator[str]:
        grammar = form if isinstance(form, Grammar) else Grammar.of_format(form)
        matcher = None if grammar is None else self.grammars.matcher(grammar)
        request = Request(
            prompt.tokens, how.options, how.num_predict, how.stop, placed=prompt.placed
        )
        made = _texts(self.events(request, matcher=matcher, call=call))
        self.stats.dropped_messages = dropped
        # The session's lock is held to the end of the answer; otherwise another call would take the
        # session over, and this one would raise.
        return made if stream else self._session.calls.take(lambda: "".join(made))


def _listed(sources: object, name: str = "images") -> list[object]:
    """Return sources as a list; one alone is refused, since bytes are a sequence as well."""
    if not isinstance(sources, list | tuple):
        what = "pictures" if name == "images" else "sounds"
        raise OptionError(f"{name}: {describe(sources)}, needs a list of {what}")
    return [*cast("Sequence[object]", sources)]


def _tokens(events: Generator[Event]) -> Iterator[int]:
    """Yield the tokens of events, which are closed at the end."""
    # If the caller stops early, the session is free at once, not when a generator is collected.
    with closing(events):
        for event in events:
            yield from event.tokens


def _texts(events: Generator[Event]) -> Iterator[str]:
    """Yield the texts of events, which are closed at the end."""
    with closing(events):
        for event in events:
            if event.text:
                yield event.text


class Conversation(Answers):
    """A session from `LanguageModel.session`, independent of the model's other sessions.

    Streams of several sessions, in one thread or several, do not affect each other's output. They
    share the context's positions: if they run out, idle sessions lose their cached prefix first.

    Use it as a context manager, or `close` it. A session that is dropped is closed.

    Attributes
    ----------
    model : LanguageModel
        The model that the session belongs to.
    """

    def __init__(self, model: Answers, sessions: Sessions) -> None:
        self.model = model
        self.tokenizer = model.tokenizer
        self.prompter = model.prompter
        self.grammars = model.grammars
        self.towers = model.towers
        self.num_ctx = model.num_ctx
        self.depth = model.depth
        self.stats = Stats()
        self._sessions = sessions
        self._session: Session = sessions.open(self)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the session's part of the cache after the current step; safe to call again."""
        self._sessions.close_one(self._session)
