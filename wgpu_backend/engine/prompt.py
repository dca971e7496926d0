"""Rendering of messages to the tokens of a prompt, as many of the newest as fit the context."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from wgpu_backend.errors import ContextFull, TemplateError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.text.chat_template import ChatTemplate, name_calls
from wgpu_backend.text.tokenizer import Tokenizer

Message = Mapping[str, object]
"""A message: a ``role``, a ``content``, and further fields that the model's template reads."""

Given = Any
"""JSON-like data: text, numbers, lists and mappings."""

# Fields that a message may have in place of its content.
_INSTEAD = ("tool_calls", "reasoning_content", "thinking", "reasoning")
# A text with {query} and {document}, not Jinja.
PAIRS = "tokenizer.chat_template.rerank"
_PARAMETERS = {"messages", "tools", "documents", "add_generation_prompt"}
_TOKENS = {f"{role}_token": role for role in ("unk", "sep", "pad", "mask")}


class Prompter:
    """A renderer of conversations with the model's own template."""

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._pairs: str | None = None
        if PAIRS in config:
            self._pairs = config.string(PAIRS)
        self.template: ChatTemplate | None = None
        if "tokenizer.chat_template" in config:
            self.use_template(config.string("tokenizer.chat_template"))

    def use_template(self, source: str) -> None:
        """Set the template for conversations.

        Raises
        ------
        TemplateError
            The template is not valid Jinja.
        """
        tokenizer = self.tokenizer
        self.template = ChatTemplate(
            source,
            bos_token=self._text(tokenizer.bos_id),
            eos_token=self._text(tokenizer.eos_id),
            other_tokens={
                name: tokenizer.token_text(tokenizer.special_ids[role])
                for name, role in _TOKENS.items()
                if role in tokenizer.special_ids
            },
        )

    def _text(self, token: int | None) -> str:
        return "" if token is None else self.tokenizer.token_text(token)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Render a conversation to tokens, up to the beginning of the model's answer.

        Only the template makes control tokens; in the messages their spellings are plain text.

        Parameters
        ----------
        messages : sequence of mappings
            Each with a ``role`` and a ``content``: text, or parts ``{"type": "text", "text": …}``.
            An assistant's message may have ``tool_calls`` or ``reasoning_content`` in addition to
            the content or instead.
        tools : sequence of mappings or None
            Functions that the model may call, as JSON schemas.
        documents : sequence of mappings or None
            Reference texts for the answer, with ``title`` and ``text``.
        chat_template_kwargs : mapping or None
            Variables of the model's own template, such as ``{"enable_thinking": False}``.

        Raises
        ------
        TemplateError
            The model has no template, it refuses the messages, or one is not a message.
        """
        text = self.render(
            messages,
            tools=tools,
            documents=documents,
            chat_template_kwargs=chat_template_kwargs,
        )
        # The template writes special tokens itself; only BOS may be missing.
        ids = self.tokenizer.encode(text, add_special=False, parse_special=True)
        return self.with_bos(ids)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        kinds: Sequence[str] = ("text",),
    ) -> str:
        """Render a conversation to the text that `chat` tokenizes.

        Parameters
        ----------
        messages, tools, documents, chat_template_kwargs
            See `chat`.
        kinds : sequence of str
            Types of parts that messages may have.
        """
        if self.template is None:
            raise TemplateError("chat: the model's file has no chat template; use a raw prompt")
        self.check_messages(messages, kinds)
        given = chat_template_kwargs or {}
        if taken := _PARAMETERS.intersection(given):
            raise TemplateError(
                f"chat: chat_template_kwargs has {min(taken)}, pass it as a parameter of chat"
            )
        return self.template.render(
            self._shield(name_calls(self.template.source, messages)),
            add_generation_prompt=True,
            tools=self._shield(tools),
            documents=self._shield(documents),
            **self._shield(given),
        )

    def check_messages(
        self, messages: Sequence[object], kinds: Sequence[str] = ("text",)
    ) -> list[Message]:
        """Check that each message has a role and content, and return the messages.

        Parameters
        ----------
        kinds : sequence of str
            Types of parts that messages may have.

        Raises
        ------
        TemplateError
            An item is not a message.
        """
        for number, message in enumerate(messages):
            _check(number, message, kinds)
        return [cast("Message", message) for message in messages]

    def _shield(self, value: Given) -> Given:
        """Escape spellings of control tokens in all texts of JSON-like data."""
        if isinstance(value, str):
            return self.tokenizer.shield(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[object, Given]", value).items()
            return {self._shield(key): self._shield(item) for key, item in items}
        if isinstance(value, list | tuple):
            return [self._shield(item) for item in cast("Sequence[Given]", value)]
        return value

    def with_bos(self, ids: list[int]) -> list[int]:
        """Add BOS if the model needs it and the template lacks it."""
        bos = self.tokenizer.bos_id
        if bos is None or not self.tokenizer.add_bos or ids[:1] == [bos]:
            return ids
        return [bos, *ids]

    def raw(self, text: str) -> list[int]:
        """Tokenize a raw prompt; spellings of control tokens become those tokens.

        A raw prompt must be able to mark where messages begin, or an editor's cursor.
        """
        return self.tokenizer.encode(text, add_special=True, parse_special=True)

    def pair(self, query: str, text: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a query and a text for a reranker, and the type of each token.

        If the file has ``tokenizer.chat_template.rerank``, its ``{query}`` and ``{document}`` are
        replaced and all types are 0; else `encode_pair` joins them. Spellings of control tokens in
        either are plain text.

        Raises
        ------
        TokenizerError
            The file has no such template, and its tokenizer cannot encode a pair.
        """
        if self._pairs is None:
            return self.tokenizer.encode_pair(query, text)
        given = {"{query}": query, "{document}": text}
        # All places are replaced in one pass, so that a query may contain {document}.
        parts = re.split(r"(\{query\}|\{document\})", self._pairs)
        whole = "".join(
            self.tokenizer.shield(given[part]) if part in given else part for part in parts
        )
        ids = self.tokenizer.encode(whole, parse_special=True)
        return ids, [0] * len(ids)


def _check(number: int, message: object, kinds: Sequence[str]) -> None:
    """Raise if an item is not a message or has content the model does not support."""
    shown = repr(message)[:60]
    given = cast("Message", message if isinstance(message, Mapping) else {})
    content = given.get("content")
    needed = isinstance(content, str | list) or any(given.get(name) for name in _INSTEAD)
    if not isinstance(given.get("role"), str) or not needed:
        raise TemplateError(f"chat: message {number} is {shown}, needs role and content, texts")
    for part in cast("list[object]", content) if isinstance(content, list) else []:
        kind = cast("Message", part).get("type") if isinstance(part, Mapping) else part
        if kind not in kinds:
            raise TemplateError(
                f"chat: message {number} has a part of type {str(kind)[:60]!r}, needs text"
            )
        if kind != "text" and not {str(kind), "number"}.intersection(cast("Message", part)):
            raise TemplateError(
                f"chat: message {number} has a part of type {kind!r}, needs text, or data as "
                f"{kind!r} in the part"
            )


# A quarter of the context is kept free for the answer, and at least a quarter is left out at a
# time: the next requests then begin with the same tokens, and the KV cache is reused.
PARTS = 4


@dataclass(frozen=True, slots=True)
class FittedConversation:
    """The tokens of a conversation's newest messages, those messages, and the number left out."""

    tokens: list[int]
    dropped: int
    messages: Sequence[Message] = field(default=(), compare=False)


def fit_conversation(
    messages: Sequence[Message],
    render: Callable[[Sequence[Message]], list[int]],
    room: int,
    answer: int,
) -> FittedConversation:
    """Render as much of a conversation as fits the context together with an answer.

    Whole exchanges, which begin with a message of the user, are left out, the oldest first. Leading
    system messages and the user's last message stay.

    Parameters
    ----------
    render : callable
        Converts messages to tokens.
    room : int
        Positions in the context.
    answer : int
        Most tokens of the answer; negative for no limit. At most a quarter of the context is
        reserved for it.

    Raises
    ------
    ContextFull
        The user's last message alone is longer than the context.
    """
    everything = render(messages)
    part = max(room // PARTS, 1)
    excess = len(everything) - room + (part if answer < 0 else min(answer, part))
    starts = _exchanges(messages)
    if excess <= 0 or (len(starts) < 2 and len(everything) <= room):
        return FittedConversation(everything, 0, messages)
    head, going = messages[: starts[0]] if starts else messages, -(-excess // part) * part

    def part_from(start: int) -> list[Message]:
        return [*head, *messages[start:]]

    def render_from(start: int) -> list[int]:
        return render(part_from(start))

    # The search excludes the last exchange, which is always kept.
    # Bisecting relies on this: without more of the messages a prompt is never longer.
    count = bisect_left(
        starts[:-1], True, key=lambda start: len(everything) - len(render_from(start)) >= going
    )
    tokens = render_from(starts[count]) if count else everything
    if len(tokens) > room:
        raise ContextFull(
            f"the newest message, with the system message, takes {len(tokens)} tokens, the "
            f"context holds {room}; shorten it, or load the model with a larger num_ctx",
            len(tokens),
            room,
        )
    kept = part_from(starts[count]) if count else messages
    return FittedConversation(tokens, starts[count] - len(head) if count else 0, kept)


def _exchanges(messages: Sequence[Message]) -> list[int]:
    """Return the indices at which exchanges begin, the first after the system messages."""
    roles = [message["role"] for message in messages]
    first = next((i for i, role in enumerate(roles) if role not in ("system", "developer")), None)
    if first is None:
        return []
    return [first, *(i for i in range(first + 1, len(roles)) if roles[i] == "user")]
