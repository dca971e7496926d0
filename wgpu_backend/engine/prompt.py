"""From messages to the tokens that a model continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from wgpu_backend.chat_template import ChatTemplate
from wgpu_backend.config import Config
from wgpu_backend.errors import TemplateError
from wgpu_backend.tokenizer import Tokenizer

Message = Mapping[str, str]


class Prompter:
    """Renders conversations with a model's own template.

    Parameters
    ----------
    config : Config
    tokenizer : Tokenizer
    """

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.template: ChatTemplate | None = None
        if "tokenizer.chat_template" in config:
            self.template = ChatTemplate(
                config.string("tokenizer.chat_template"),
                bos_token=self._text(tokenizer.bos_id),
                eos_token=self._text(tokenizer.eos_id),
            )

    def _text(self, token: int | None) -> str:
        return "" if token is None else self.tokenizer.token_text(token)

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a conversation, up to where the model's answer begins.

        Control tokens come from the template alone; spelled out in a message they are text.

        Raises
        ------
        TemplateError
            The model has no template, it refuses the messages, or one of them is none.
        """
        if self.template is None:
            raise TemplateError("chat: the model's file has no chat template; use a raw prompt")
        shielded = [self._shielded(number, m) for number, m in enumerate(messages)]
        text = self.template.render(shielded, add_generation_prompt=True)
        ids = self.tokenizer.encode(text, add_special=False, parse_special=True)
        return self._with_bos(ids)

    def _shielded(self, number: int, message: object) -> Message:
        shown = repr(message)[:60]
        given = cast("Message", message if isinstance(message, Mapping) else {})
        if not all(isinstance(given.get(name), str) for name in ("role", "content")):
            raise TemplateError(f"chat: message {number} is {shown}, needs role and content, texts")
        return {**given, "content": self.tokenizer.shield(given["content"])}

    def _with_bos(self, ids: list[int]) -> list[int]:
        """Add BOS where the model wants it and the template did not write it."""
        bos = self.tokenizer.bos_id
        if bos is None or not self.tokenizer.add_bos or ids[:1] == [bos]:
            return ids
        return [bos, *ids]

    def raw(self, text: str) -> list[int]:
        """Tokens of text to be continued as it is."""
        return self.tokenizer.encode(text, add_special=True, parse_special=False)
