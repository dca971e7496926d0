"""A chat template as model files carry it, and how it is rendered.

Renders what Hugging Face's ``apply_chat_template`` does, byte for byte, from text that nobody
vouches for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import NoReturn

import jinja2

from wgpu_backend.chat_template.budget import Budget, Limits
from wgpu_backend.chat_template.sandbox import Sandbox, load
from wgpu_backend.errors import TemplateError

_MAX_SOURCE_CHARS = 1 << 17  # compiling these takes seconds; the longest known has 20,000
_MAX_DATE_CHARS = 256
_DEFAULT_LIMITS = Limits()


class ChatTemplate:
    """A compiled chat template; safe to use from several threads.

    Parameters
    ----------
    source : str
        The template, ``tokenizer.chat_template`` of a GGUF file.
    bos_token, eos_token : str, optional
        Texts of the tokens that the template may name; undefined in it where None.
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
        self._tokens = {name: text for name, text in tokens.items() if text is not None}
        with _as_template_error():
            self._code = Sandbox(Budget(limits)).compile(source)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **variables: object,
    ) -> str:
        """Write a conversation as the text that the model continues.

        Parameters
        ----------
        messages : sequence of Mapping
            The conversation: mappings with a ``role`` and a ``content``, as the template asks.
        add_generation_prompt : bool, optional
            End with the start of the assistant's answer.
        tools : sequence of Mapping, optional
            Functions that the model may call, as JSON schemas.
        **variables : object
            Other variables of this template, such as ``enable_thinking``.

        Returns
        -------
        str

        Raises
        ------
        TemplateError
            When the template refuses the conversation, fails, or exceeds its limits.
        """
        budget = Budget(self._limits)
        values: dict[str, object] = {
            "raise_exception": _refuse,
            "strftime_now": self._strftime_now,
            "documents": None,
            **self._tokens,
            **variables,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        with _as_template_error():
            return _collect(load(self._code, budget).generate(values), budget)

    def _strftime_now(self, form: str) -> str:
        if len(form) > _MAX_DATE_CHARS or re.search(r"%\W*\d", form):
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
    raise TemplateError(f"chat template: {message}")


@contextmanager
def _as_template_error() -> Generator[None]:
    try:
        yield
    except TemplateError:
        raise
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"chat template: line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise TemplateError("chat template: recurses without end") from error
    except Exception as error:  # a template can raise whatever its expressions do
        raise TemplateError(f"chat template: {type(error).__name__}: {error}") from error
