"""A chat template as model files carry it, and how it is rendered.

Renders what Hugging Face's ``apply_chat_template`` does, byte for byte, from text that nobody
vouches for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import NoReturn

import jinja2

from wgpu_backend.errors import TemplateError
from wgpu_backend.text.chat_template.budget import Budget, Limits
from wgpu_backend.text.chat_template.inputs import adopted, as_in_transformers, with_content
from wgpu_backend.text.chat_template.sandbox import Sandbox, load

_MAX_SOURCE_CHARS = 1 << 17  # compiling these takes seconds; the longest known has 20,000
_MAX_DATE_CHARS = 256
_MAX_MESSAGE_CHARS = 1000  # of an error; a template may put a whole conversation into its own
_DEFAULT_LIMITS = Limits()
_PROBE = "<<a system message>>"


class ChatTemplate:
    """A compiled chat template; safe to use from several threads.

    Parameters
    ----------
    source : str
        The template, ``tokenizer.chat_template`` of a GGUF file.
    bos_token, eos_token : str, optional
        Texts of the tokens that the template may name; undefined in it where None.
    other_tokens : Mapping, optional
        Texts of further tokens by the names that templates use, such as ``pad_token``.
    limits : Limits, optional
        Caps on each rendering, and on compiling.
    clock : callable, optional
        What time it is, for templates that print the date.

    Raises
    ------
    TemplateError
        When the template is no Jinja, or too large.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        other_tokens: Mapping[str, str] = MappingProxyType({}),
        limits: Limits = _DEFAULT_LIMITS,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        if len(source) > _MAX_SOURCE_CHARS:
            raise TemplateError(
                f"chat template: has {len(source)} characters, needs at most {_MAX_SOURCE_CHARS}"
            )
        self.source = source
        self._limits = limits
        self._clock = clock
        tokens = {"bos_token": bos_token, "eos_token": eos_token}
        named = {name: text for name, text in tokens.items() if text is not None}
        self._tokens = {**other_tokens, **named}
        with _as_template_error():
            self._code = Sandbox(Budget(limits)).compile(source)

    @cached_property
    def places_system(self) -> bool:
        """Whether a conversation that begins with a system message shows it.

        True, too, where the template refuses a user's message alone, so that nothing can be told.
        """
        turns = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}]
        try:
            return _PROBE in self.render(turns)
        except TemplateError:
            pass
        try:
            self.render(turns[1:])
        except TemplateError:
            return True
        return False

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        documents: Sequence[Mapping[str, object]] | None = None,
        **variables: object,
    ) -> str:
        """Write a conversation as the text that the model continues.

        Parameters
        ----------
        messages : sequence of Mapping
            The conversation: mappings with a ``role`` and a ``content``, as the template asks.
            What is None in one is left out (but a content that the template asks for all the
            same), and its reasoning reaches the template as
            ``reasoning_content`` and ``thinking`` under either name, as in transformers.
        add_generation_prompt : bool, optional
            End with the start of the assistant's answer.
        tools : sequence of Mapping, optional
            Functions that the model may call, as JSON schemas.
        documents : sequence of Mapping, optional
            Texts to answer from, with ``title`` and ``text``, for templates that have a place for
            them.
        **variables : object
            Other variables of this template, such as ``enable_thinking``: text, numbers, lists and
            mappings.

        Returns
        -------
        str

        Raises
        ------
        TemplateError
            When the template refuses the conversation, fails, or exceeds its limits.
        """
        said = [as_in_transformers(message) for message in messages]
        given: dict[str, object] = {
            "documents": documents,
            **self._tokens,
            **variables,
            "messages": said,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        with _as_template_error():
            try:
                return self._rendered(given)
            except jinja2.UndefinedError:
                # Without a place for calls, an empty turn would be all that is left of one.
                for nothing in (None, "") if "tool_calls" in self.source else (None,):
                    spelled = [with_content(message, nothing) for message in messages]
                    with suppress(jinja2.TemplateError, TypeError):
                        if spelled != said:
                            return self._rendered({**given, "messages": spelled})
                raise

    def _rendered(self, given: Mapping[str, object]) -> str:
        budget = Budget(self._limits)
        values = {name: adopted(budget, name, value) for name, value in given.items()}
        values["raise_exception"] = _refuse
        values["strftime_now"] = self._strftime_now
        return _collect(load(self._code, budget).generate(values), budget)

    def _strftime_now(self, form: str) -> str:
        if len(form) > _MAX_DATE_CHARS or re.search(r"%[\W_]*\d", form):
            raise TemplateError(
                f"chat template: date format has {len(form)} characters or a width, "
                f"needs at most {_MAX_DATE_CHARS} and none"
            )
        return self._clock().strftime(form)


def _collect(pieces: Iterator[str], budget: Budget) -> str:
    """Join the output, checking its length and the time as it grows."""
    kept: list[str] = []
    length = 0
    for piece in pieces:
        budget.tick()
        length += len(piece)
        budget.allow(length)
        kept.append(piece)
    return "".join(kept)


def _refuse(message: object) -> NoReturn:
    raise TemplateError(f"chat template: {_cut(message)}")


def _cut(message: object) -> str:
    text = str(message)
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[:_MAX_MESSAGE_CHARS] + "…"


@contextmanager
def _as_template_error() -> Generator[None]:
    try:
        yield
    except TemplateError:
        raise
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"chat template: line {error.lineno}: {_cut(error.message)}") from error
    except RecursionError as error:
        raise TemplateError("chat template: recurses without end") from error
    except Exception as error:  # a template can raise whatever its expressions do
        raise TemplateError(f"chat template: {type(error).__name__}: {_cut(error)}") from error
