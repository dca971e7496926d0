"""From messages to the tokens that a model continues."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from wgpu_backend.errors import TemplateError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.text.chat_template import ChatTemplate
from wgpu_backend.text.tokenizer import Tokenizer

Message = Mapping[str, object]
"""A turn: a ``role``, a ``content``, and what else the model's template reads."""

Given = Any
"""Plain data: text, numbers, lists and mappings."""

_INSTEAD = ("tool_calls", "reasoning_content", "thinking", "reasoning")  # of a content
PAIRS = "tokenizer.chat_template.rerank"  # texts with {query} and {document}, not Jinja
_PARAMETERS = {"messages", "tools", "documents", "add_generation_prompt"}
_TOKENS = {f"{role}_token": role for role in ("unk", "sep", "pad", "mask")}


class Prompter:
    """Renders conversations with a model's own template.

    Parameters
    ----------
    config : Config
    tokenizer : Tokenizer
    """

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._pairs: str | None = None
        if PAIRS in config:
            self._pairs = config.string(PAIRS)
        self.template: ChatTemplate | None = None
        if "tokenizer.chat_template" in config:
            self.use_template(config.string("tokenizer.chat_template"))

    def use_template(self, source: str) -> None:
        """Render conversations with this template from now on.

        Raises
        ------
        TemplateError
            It is none.
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
        """Tokens of a conversation, up to where the model's answer begins.

        Control tokens come from the template alone; spelled out in what is given here they are
        text.

        Parameters
        ----------
        messages : sequence of mappings
            Each with a ``role`` and a ``content``: text, or parts ``{"type": "text", "text": …}``.
            An assistant's turn may have ``tool_calls`` or ``reasoning_content`` beside it or in its
            place.
        tools : sequence of mappings or None
            Functions that the model may call, as JSON schemas.
        documents : sequence of mappings or None
            Texts to answer from, with ``title`` and ``text``.
        chat_template_kwargs : mapping or None
            Variables of the model's own template, such as ``{"enable_thinking": False}``.

        Raises
        ------
        TemplateError
            The model has no template, it refuses the messages, or one of them is none.
        """
        if self.template is None:
            raise TemplateError("chat: the model's file has no chat template; use a raw prompt")
        self.checked(messages)
        given = chat_template_kwargs or {}
        if taken := _PARAMETERS.intersection(given):
            raise TemplateError(
                f"chat: chat_template_kwargs has {min(taken)}, needs it as a parameter"
            )
        text = self.template.render(
            self._shielded(messages),
            add_generation_prompt=True,
            tools=self._shielded(tools),
            documents=self._shielded(documents),
            **self._shielded(given),
        )
        ids = self.tokenizer.encode(text, add_special=False, parse_special=True)
        return self._with_bos(ids)

    def checked(self, messages: Sequence[object]) -> list[Message]:
        """Messages as they are, each with a role and content.

        Raises
        ------
        TemplateError
            One of them is none.
        """
        for number, message in enumerate(messages):
            _check(number, message)
        return [cast("Message", message) for message in messages]

    def _shielded(self, value: Given) -> Given:
        """What a user gave, with no control token spelled in any text of it."""
        if isinstance(value, str):
            return self.tokenizer.shield(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[object, Given]", value).items()
            return {self._shielded(key): self._shielded(item) for key, item in items}
        if isinstance(value, list | tuple):
            return [self._shielded(item) for item in cast("Sequence[Given]", value)]
        return value

    def _with_bos(self, ids: list[int]) -> list[int]:
        """Add BOS where the model wants it and the template did not write it."""
        bos = self.tokenizer.bos_id
        if bos is None or not self.tokenizer.add_bos or ids[:1] == [bos]:
            return ids
        return [bos, *ids]

    def raw(self, text: str) -> list[int]:
        """Tokens of text to be continued as it is; control tokens in it are what they spell.

        It is a whole prompt, so it has to say where turns begin, or where an editor's cursor is.
        """
        return self.tokenizer.encode(text, add_special=True, parse_special=True)

    def pair(self, query: str, text: str) -> tuple[list[int], list[int]]:
        """Tokens of a query and a text for a reranker, and the type of each.

        Where the file says how they stand together, in ``tokenizer.chat_template.rerank``, its
        ``{query}`` and ``{document}`` are replaced and all types are 0; else `encode_pair` puts
        them together. Control tokens that are spelled out in either are text.

        Raises
        ------
        TokenizerError
            The file says nothing, and its tokenizer does not read two texts together.
        """
        if self._pairs is None:
            return self.tokenizer.encode_pair(query, text)
        given = {"{query}": query, "{document}": text}
        parts = re.split(r"(\{query\}|\{document\})", self._pairs)
        whole = "".join(
            self.tokenizer.shield(given[part]) if part in given else part for part in parts
        )
        ids = self.tokenizer.encode(whole, parse_special=True)
        return ids, [0] * len(ids)


def _check(number: int, message: object) -> None:
    """Refuse what is no message, or has what the model cannot see."""
    shown = repr(message)[:60]
    given = cast("Message", message if isinstance(message, Mapping) else {})
    content = given.get("content")
    needed = isinstance(content, str | list) or any(given.get(name) for name in _INSTEAD)
    if not isinstance(given.get("role"), str) or not needed:
        raise TemplateError(f"chat: message {number} is {shown}, needs role and content, texts")
    for part in cast("list[object]", content) if isinstance(content, list) else []:
        kind = cast("Message", part).get("type") if isinstance(part, Mapping) else part
        if kind != "text":
            raise TemplateError(
                f"chat: message {number} has a part of type {str(kind)[:60]!r}, needs text alone"
            )
