"""How prompts and conversations are answered, whoever's part of the cache serves them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, overload

from wgpu_backend.engine.arguments import Asked, Options, asked, conversation, text, token_ids
from wgpu_backend.engine.fitting import fitted
from wgpu_backend.engine.generation import Session, Stats, pieces
from wgpu_backend.engine.prompt import Message, Prompter
from wgpu_backend.engine.sessions import Sessions
from wgpu_backend.tokenizer import Tokenizer

Messages = Sequence[Message] | Message | str


class Answers:
    """Answers prompts, and keeps what it computed of them for the next one.

    Calls without ``stream=True`` wait for each other and have the cache to their end. A stream has
    it until the next call or stream begins, and is told so then; streams side by side need a
    session each.

    Attributes
    ----------
    tokenizer : Tokenizer
    prompter : Prompter
        Renders conversations.
    num_ctx : int
        Positions of the context.
    stats : Stats
        Of the last generation.
    """

    tokenizer: Tokenizer
    prompter: Prompter
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
        options: Options | None = None,
        num_predict: int | None = None,
        stop: str | Iterable[str] | None = None,
    ) -> str: ...
    @overload
    def generate(
        self,
        prompt: str,
        *,
        stream: Literal[True],
        system: str | None = None,
        raw: bool = False,
        options: Options | None = None,
        num_predict: int | None = None,
        stop: str | Iterable[str] | None = None,
    ) -> Iterator[str]: ...
    def generate(
        self,
        prompt: str,
        *,
        stream: bool = False,
        system: str | None = None,
        raw: bool = False,
        options: Options | None = None,
        num_predict: int | None = None,
        stop: str | Iterable[str] | None = None,
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
        options : SamplingOptions, mapping or None
            A mapping has Ollama's names, ``num_predict`` and ``stop`` among them.
        num_predict : int or None
            Most tokens to make; None or negative for as many as the context holds.
        stop : str, iterable of str or None
            Texts that end the answer.

        Raises
        ------
        ContextFull
            The prompt is longer than the context.
        CacheFull
            Streams of other sessions have all of the cache.
        OptionError
            An argument is of the wrong kind, out of range, or unknown.
        BackendError
            The model was closed, or another call took over before the stream was at its end.
        """
        how = asked(options, num_predict, stop)
        prompt = text("prompt", prompt)
        system = None if system is None else text("system", system)
        if raw or self.prompter.template is None:
            ids = self.prompter.raw(prompt)
        else:
            messages = [{"role": "system", "content": system}] if system else []
            ids = self.prompter.chat([*messages, {"role": "user", "content": prompt}])
        return self._answer("generate", ids, how, stream=stream)

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
    ) -> str | Iterator[str]:
        """Answer a conversation; what the cache holds of it is not computed again.

        Where the context has no room for it and an answer, the oldest exchanges are left out;
        system messages in front stay. `Stats.dropped_messages` says how many messages went.

        Parameters
        ----------
        messages : sequence of mappings
            Each with ``role`` and ``content``; a text alone is what the user says.
        stream, options, num_predict, stop
            See `generate`.
        tools, documents, chat_template_kwargs
            What the model's template may write beside the messages: see `Prompter.chat`.

        Raises
        ------
        TemplateError
            The model has no chat template, or it refuses the messages.
        ContextFull
            The newest message is longer than the context.
        """
        how = asked(options, num_predict, stop)
        found = fitted(
            self.prompter.checked(conversation(messages)),
            partial(
                self.prompter.chat,
                tools=tools,
                documents=documents,
                chat_template_kwargs=chat_template_kwargs,
            ),
            self.num_ctx,
            how.num_predict,
        )
        return self._answer("chat", found.tokens, how, stream=stream, dropped=found.dropped)

    def tokens(
        self,
        prompt: Sequence[int],
        options: Options | None = None,
        num_predict: int | None = None,
    ) -> Iterator[int]:
        """Tokens that follow a prompt of tokens, as a stream."""
        ids = token_ids(prompt, self._sessions.vocabulary)
        return self._streamed("tokens", ids, asked(options, num_predict, None))

    def _answer(
        self, call: str, ids: Sequence[int], how: Asked, *, stream: bool, dropped: int = 0
    ) -> str | Iterator[str]:
        made = pieces(self._streamed(call, ids, how), self.tokenizer.stream(), how.stop, self.stats)
        self.stats.dropped_messages = dropped
        return made if stream else self._session.calls.take(lambda: "".join(made))

    def _streamed(self, call: str, ids: Sequence[int], how: Asked) -> Generator[int]:
        stream = self._sessions.stream(
            self._session, how.options, how.num_predict, self.depth, call
        )
        self.stats = stream.stats
        return self._sessions.items(self._session, stream.run(ids))
