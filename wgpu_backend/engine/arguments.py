"""Conversion and checks of the callers' arguments, with one-line error messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import cast

from wgpu_backend.engine.prompt import Message
from wgpu_backend.errors import ModelError, OptionError, TemplateError, describe
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.ops.sampling.host.options import known_options, nearest, whole_number

Options = SamplingOptions | Mapping[str, object]
# Ollama has these among the options, though they are not for sampling.
OF_A_CALL = ("num_predict", "stop")


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The checked options of one generation call.

    Parameters
    ----------
    num_predict : int
        Most tokens to make; negative for as many as the context holds.
    stop : sequence of str
        Texts that end the answer, none of them empty.
    """

    options: SamplingOptions
    num_predict: int
    stop: Sequence[str]


def check_options(
    options: Options | None, num_predict: int | None, stop: str | Iterable[str] | None
) -> CallOptions:
    """Check the arguments of a generation call.

    Raises
    ------
    OptionError
        An argument is of the wrong kind, out of range, unknown, or given twice.
    """
    given = _options(options)
    of_call: dict[str, object] = {"num_predict": num_predict, "stop": stop}
    for name in OF_A_CALL:
        value = given.pop(name, None)
        if value is not None and of_call[name] is not None:
            raise OptionError(
                f"{name}: {of_call[name]!r}, and {value!r} in options; give it only once"
            )
        of_call[name] = of_call[name] if value is None else value
    sampling = options if isinstance(options, SamplingOptions) else SamplingOptions(**given)  # pyright: ignore[reportArgumentType] it checks them
    limit = of_call["num_predict"]
    # In Ollama's options, -1 stands for no limit.
    return CallOptions(
        sampling,
        -1 if limit is None else whole_number("num_predict", limit),
        stops(of_call["stop"]),
    )


def _options(options: object) -> dict[str, object]:
    """Return the items of an options mapping; raise for unknown names."""
    if options is None or isinstance(options, SamplingOptions):
        return {}
    if not isinstance(options, Mapping):
        raise OptionError(
            f"options: {describe(options)}, needs SamplingOptions or a dict, for example "
            "{'temperature': 0}"
        )
    given = dict(cast("Mapping[object, object]", options))
    known = [*known_options(), *OF_A_CALL]
    for name in given:
        # Ollama takes it with each call; here loading allocates the cache, once.
        if name == "num_ctx":
            raise OptionError("options: num_ctx is an argument of load(), not of a call")
        if name not in known:
            raise OptionError(f"options: {name!r} is unknown{nearest(str(name), known)}")
    return {str(name): value for name, value in given.items()}


def stops(stop: object) -> list[str]:
    """Return the stop texts of an argument, without empty ones."""
    if stop is None:
        return []
    # An empty text occurs everywhere, so it would end every answer at once.
    return [each for each in texts("stop", stop) if each]


def text(name: str, value: object) -> str:
    """Return an argument that must be a text.

    Raises
    ------
    OptionError
        It is not a string.
    """
    if not isinstance(value, str):
        raise OptionError(f"{name}: {describe(value)}, needs a string")
    return value


def texts(name: str, value: object) -> list[str]:
    """Return a list of one text or several."""
    if isinstance(value, str):
        return [value]
    # These are iterable as well, but their items are numbers and keys.
    if isinstance(value, bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise OptionError(f"{name}: {describe(cast('object', value))}, needs a string or a list")
    return [text(f"{name}[{i}]", each) for i, each in enumerate(cast("Iterable[object]", value))]


def conversation(messages: object) -> list[Message]:
    """Return the messages of a conversation; a text is a user's message, a dict one message.

    Raises
    ------
    TemplateError
        The argument is of another type.
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if isinstance(messages, Mapping):
        return [cast("Message", messages)]
    if isinstance(messages, bytes | bytearray) or not isinstance(messages, Iterable):
        raise TemplateError(
            f"chat: messages are {describe(cast('object', messages))}, needs a list of them, for "
            "example [{'role': 'user', 'content': 'hello'}]"
        )
    return list(cast("Iterable[Message]", messages))


def token_ids(tokens: object, rows: int) -> list[int]:
    """Return token ids, checked against a vocabulary of `rows` tokens.

    Raises
    ------
    ModelError
        An item is not a token id of the vocabulary.
    """
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        raise ModelError(f"tokens: {describe(cast('object', tokens))}, needs whole numbers")
    try:
        # `index` accepts NumPy's integers and refuses floats; `int` would truncate those.
        ids = [index(cast("int", token)) for token in cast("Iterable[object]", tokens)]
    except TypeError as error:
        raise ModelError(f"tokens: needs whole numbers: {error}") from None
    wrong = [i for i in ids if not 0 <= i < rows]
    if wrong:
        raise ModelError(f"tokens: {wrong[0]} is not a token, the vocabulary has {rows}")
    return ids


def within(name: str, value: object, most: int, least: int = 1) -> int:
    """Return a whole number from `least` to `most`, both included.

    Raises
    ------
    OptionError
        It is not a whole number, or out of range.
    """
    number = whole_number(name, value)
    if not least <= number <= most:
        raise OptionError(f"{name}: {number}, needs {least} to {most}")
    return number
