"""A model's chat template, and its rendering.

The result equals that of Hugging Face's ``apply_chat_template`` byte for byte. Templates come from
untrusted model files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, NoReturn, cast

import jinja2

from wgpu_backend.errors import TemplateError
from wgpu_backend.text.chat_template.budget import Budget, Limits
from wgpu_backend.text.chat_template.sandbox import Sandbox, load

# Compiling this many characters takes seconds; the longest known template has 20,000.
_MAX_SOURCE_CHARS = 1 << 17
_MAX_DATE_CHARS = 256
# A template may put a whole conversation into its error message.
_MAX_MESSAGE_CHARS = 1000
_DEFAULT_LIMITS = Limits()
_PROBE = "<<a system message>>"
_KIMI_CALL = "<|tool_call_begin|>"
_KIMI_ID = re.compile(r"""call(?:\.id\b|\[['"]id['"]\]|\.get\(['"]id['"])""")

Value = Any
"""Plain data."""

_REASONING = ("reasoning_content", "thinking", "reasoning")


def copy_input(budget: Budget, name: str, value: object) -> Value:
    """Copy a value as plain data, and register its size with the budget.

    A template sees only copies of mappings, lists, texts and numbers. It can therefore not reach a
    method of an object from outside, and its inputs cannot change.

    Raises
    ------
    TemplateError
        The value contains anything else.
    """
    if value is None or isinstance(value, bool):
        return value
    # A subclass, such as an enum, is reduced to its plain value.
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value) if type(value) is not plain else value
    copy = _container(budget, name, value)
    budget.known[id(copy)] = budget.measure(copy)
    return copy


def _container(budget: Budget, name: str, value: object) -> Value:
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {
            copy_input(budget, name, key): copy_input(budget, f"{name}.{key!s:.40}", item)
            for key, item in items
        }
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        copies = [copy_input(budget, f"{name}[{i}]", item) for i, item in enumerate(items)]
        return tuple(copies) if isinstance(value, tuple) else copies
    raise TemplateError(
        f"chat template: {name} is of type {type(value).__name__}, "
        "needs text, numbers, lists and mappings"
    )


def normalize_message(message: object) -> object:
    """Convert a message as ``apply_chat_template`` does.

    Keys with None are dropped: templates test for the presence of ``content`` or ``tool_calls``.
    The reasoning gets the names that templates read, whichever of them it came with.
    """
    if not isinstance(message, Mapping):
        return message
    items = cast("Mapping[str, object]", message).items()
    there = {key: value for key, value in items if value is not None}
    reasoning = next((there[name] for name in _REASONING if name in there), None)
    if reasoning is None:
        return there
    return {"thinking": reasoning, **there, "reasoning_content": reasoning}


def fill_content(message: object, nothing: str | None) -> object:
    """Convert a message, with this content in place of None.

    Templates such as DeepSeek R1's test for None, and Qwen3's require a string.
    """
    said = normalize_message(message)
    if not isinstance(message, Mapping) or "content" not in message:
        return said
    return {"content": nothing, **cast("Mapping[str, object]", said)}


def name_calls(
    template: str, messages: Sequence[Mapping[str, object]]
) -> Sequence[Mapping[str, object]]:
    """Give the calls of a conversation the ids that Kimi K2 writes; see `_CallNames`.

    Conversations for other templates stay as they are.
    """
    if _KIMI_CALL not in template or _KIMI_ID.search(template) is None:
        return messages
    names = _CallNames()
    return [names.rename(message) for message in messages]


class _CallNames:
    """The ids of calls and their results in a conversation: ``functions.weather:0``, in order.

    Kimi K2's templates print a call's id in place of its function's name. Clients send ids of
    other forms, or none as Ollama's do, and the model would not see which function was called.
    """

    def __init__(self) -> None:
        self._count = 0
        self._known: dict[str, str] = {}
        self._waiting: list[str] = []

    def rename(self, message: Mapping[str, object]) -> Mapping[str, object]:
        """Return a message with the ids of its calls, or of its result, in Kimi K2's form."""
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            self._waiting = []
            named = [self._name(call) for call in cast("list[object]", calls)]
            return {**message, "tool_calls": named}
        if message.get("role") != "tool" or not self._waiting:
            return message
        # Results without an id are in the order of their calls.
        given = message.get("tool_call_id")
        name = self._known.get(str(given), self._waiting[0]) if given else self._waiting[0]
        self._waiting = [each for each in self._waiting if each != name]
        return {**message, "tool_call_id": name}

    def _name(self, call: object) -> object:
        fields = _get_mapping(call)
        name = _get_mapping(fields.get("function")).get("name")
        if not isinstance(name, str):
            return call
        made = f"functions.{name}:{self._count}"
        self._count += 1
        self._known[str(fields.get("id"))] = made
        self._waiting.append(made)
        return {**fields, "id": made}


def _get_mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


class ChatTemplate:
    """A compiled chat template; safe to use from several threads.

    Parameters
    ----------
    source : str
        The template, ``tokenizer.chat_template`` of a GGUF file.
    bos_token, eos_token : str, optional
        Texts of the tokens that the template may name; undefined in it if None.
    other_tokens : Mapping, optional
        Texts of further tokens by the names that templates use, such as ``pad_token``.
    limits : Limits, optional
        Limits of each rendering, and of compiling.
    clock : callable, optional
        Current time, for templates that print the date.

    Raises
    ------
    TemplateError
        The template is not valid Jinja, or is too large.
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
        """Return whether a rendered conversation contains its system message.

        True, too, if the template rejects a user's message alone, so that this cannot be found out.
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
            The conversation: mappings with a ``role`` and a ``content``, as the template expects.
            Keys with None are dropped, except a content that the template requires. Reasoning
            reaches the template as ``reasoning_content`` and ``thinking``, as in transformers.
        add_generation_prompt : bool, optional
            End with the start of the assistant's answer.
        tools : sequence of Mapping, optional
            Functions that the model may call, as JSON schemas.
        documents : sequence of Mapping, optional
            Texts to answer from, with ``title`` and ``text``, for templates that use them.
        **variables : object
            Other variables of this template, such as ``enable_thinking``: text, numbers, lists and
            mappings.

        Raises
        ------
        TemplateError
            The template rejects the conversation, fails, or exceeds its limits.
        """
        said = [normalize_message(message) for message in messages]
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
                return self._render(given)
            except jinja2.UndefinedError:
                # Without support for calls, a message with calls would become an empty one.
                for nothing in (None, "") if "tool_calls" in self.source else (None,):
                    spelled = [fill_content(message, nothing) for message in messages]
                    with suppress(jinja2.TemplateError, TypeError):
                        if spelled != said:
                            return self._render({**given, "messages": spelled})
                raise

    def _render(self, given: Mapping[str, object]) -> str:
        budget = Budget(self._limits)
        values = {name: copy_input(budget, name, value) for name, value in given.items()}
        values["raise_exception"] = _refuse
        values["strftime_now"] = self._strftime_now
        return _collect(load(self._code, budget).generate(values), budget)

    def _strftime_now(self, form: str) -> str:
        if len(form) > _MAX_DATE_CHARS or re.search(r"%[\W_]*\d", form):
            raise TemplateError(
                f"chat template: date format has {len(form)} characters or a width, "
                f"needs at most {_MAX_DATE_CHARS} characters and no width"
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
    except Exception as error:
        # A template can raise any exception that its expressions do.
        raise TemplateError(f"chat template: {type(error).__name__}: {_cut(error)}") from error
