"""Readers of calls in spans: JSON, names with JSON, and Python's notation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from wgpu_backend.text.output_parsers.arriving import Arriving, Broken, Reading
from wgpu_backend.text.output_parsers.calls import (
    CALL_KEYS,
    Offered,
    arguments_of,
    calls_in,
    calls_of,
    decoded,
    decoded_at,
    keyed_calls,
)
from wgpu_backend.text.output_parsers.literals import python_calls
from wgpu_backend.text.output_parsers.parts import ToolCall
from wgpu_backend.text.output_parsers.spans import Body, Read

_BETWEEN = re.compile(r"[\s,;]*")
_STRAY = re.compile(r"[\s,;}\]]*")  # models write a bracket too many
_NAME = re.compile(r"[\w.\-/]*")
_NUMBERED = re.compile(r":\d+$")
_FENCED = re.compile(r"[\w]*")
_FENCE = "```"
_SPACES = re.compile(r"\s*+")


def json_calls(*closings: str, keyed: bool = False) -> Read:
    """Reader of JSON objects or lists with calls, one or several.

    Parameters
    ----------
    *closings : str
        Tags that end them; models leave them out at times, so other text ends them, too.
    keyed : bool
        Whether an object has the function's name as its only key.
    """
    calls, end = keyed_calls if keyed else calls_in, _end(closings)

    def read(body: Body) -> Reading[None]:
        text = body.text
        text.passed(_SPACES)
        if not text.text.startswith("{", text.at):
            yield from opened_json(text)
        while True:
            body.give(calls((yield from value_of_json(text))))
            if text.passed(end.passed) is not None:
                return
            if (yield from text.spaces(_BETWEEN)) not in ("{", "["):
                break
        yield from closed(body, *closings)

    return read


class _End(NamedTuple):
    """Tags that end calls."""

    passed: re.Pattern[str]  # with what models write before one
    begun: re.Pattern[str]  # a character that may begin that


@lru_cache(maxsize=64)
def _end(closings: tuple[str, ...]) -> _End:
    longest = sorted(closings, key=len, reverse=True)
    firsts = re.escape("".join(tag[0] for tag in longest))
    tags = "|".join(map(re.escape, longest)) or r"(?!)"
    return _End(re.compile(rf"{_STRAY.pattern}+(?:{tags})"), re.compile(rf"[\s,;}}\]`{firsts}]"))


def value_of_json(text: Arriving) -> Reading[object]:
    """Value of JSON that begins here; decoded in one step where all of it is there.

    Raises
    ------
    ValueError
        It is no JSON.
    """
    if text.text.find("}", text.at) >= 0:
        found = decoded_at(text.text, text.at)
        if found is not None:
            text.at = found[1]
            return found[0]
    return decoded((yield from text.bracketed()))


def opened_json(text: Arriving) -> Reading[str]:
    """Pass spaces, and a code block's beginning, up to JSON.

    Raises
    ------
    Broken
        Something else comes.
    """
    mark = yield from text.spaces()
    if mark == "`" and (yield from text.took(_FENCE)):
        yield from text.run(_FENCED)
        mark = yield from text.spaces()
    if mark not in ("{", "["):
        raise Broken("no JSON" if mark or not text.ended else "the answer ends early")
    return mark


def closed(body: Body, *closings: str) -> Reading[None]:
    """Pass one of the closing tags, where it comes; spaces before it, and a bracket too many."""
    text = body.text
    if not closings:
        return
    end = _end(closings)
    if text.passed(end.passed) is not None:
        return
    if text.at < len(text.text) and not end.begun.match(text.text, text.at):
        return
    text.mark()
    yield from text.spaces(_STRAY)
    fence = yield from text.took(_FENCE)
    if fence:
        yield from text.spaces(_STRAY)
    if (yield from text.took(*closings)) is None and not fence:
        text.back()
        text.mark()


def named_arguments(text: Arriving, name: str) -> Reading[ToolCall]:
    """A call whose name was read and whose arguments come, as JSON, in a code block or not."""
    name = name.strip()
    if not text.text.startswith("{", text.at):
        yield from opened_json(text)
    arguments = arguments_of((yield from value_of_json(text)))
    if not name:
        raise ValueError("no name")
    return ToolCall(name, arguments)


def sectioned(call: str, separators: Sequence[str], end: str, *closings: str) -> Read:
    """Reader of a section of calls, each of them a name and JSON between tags.

    Parameters
    ----------
    call : str
        Begins a call.
    separators : sequence of str
        The last stands between name and JSON, the name between it and the one before.
    end : str
        Ends a call.
    *closings : str
        End the section.
    """
    ways = [rf"[^<\n]*+{re.escape(separator)}\s*+" for separator in separators[:-1]]
    # DeepSeek R1 writes a type in front of the separator, and the name after it.
    ways.append(
        rf"(?:([^<\n]++){re.escape(separators[-1])}\s*+(?=[{{`])"
        rf"|[^<\n]*+{re.escape(separators[-1])}\s*+([^\n{{`][^\n]*+)\n)"
    )
    begun = re.compile(rf"\s*+{re.escape(call)}" + "".join(ways))
    ended = re.compile(rf"\s*+(?:{'|'.join(map(re.escape, closings)) or '(?!)'})")

    def read(body: Body) -> Reading[None]:
        text = body.text
        while True:
            found = text.passed(begun)
            if found is None and not (yield from _another(body, call, closings)):
                return
            name = (found[1] or found[2]) if found else (yield from _named(text, separators))
            made = yield from named_arguments(text, name)
            function = _NUMBERED.sub("", made.name.removeprefix("functions."))
            body.give([ToolCall(function, made.arguments)])
            yield from closed(body, end)
            if text.passed(ended) is not None:
                return

    return read


def _named(text: Arriving, separators: Sequence[str]) -> Reading[str]:
    """Name of a function before its arguments, of which one character is there."""
    name = ""
    for separator in separators:
        name = yield from text.until(separator)
    if (yield from text.spaces()) not in ("{", "`"):
        name = yield from text.until("\n")
    return name


def _another(body: Body, call: str, closings: Sequence[str]) -> Reading[bool]:
    """Pass what begins another call, or the section's end."""
    text = body.text
    yield from text.spaces()
    tag = yield from text.took(call, *closings)
    if tag is None and not body.given:
        raise Broken("no call" if not text.ended else "the answer ends early")
    return tag == call


def mistral_calls(body: Body) -> Reading[None]:
    """Read a list of calls in JSON, or a name and its arguments."""
    text = body.text
    if (yield from text.spaces()) in ("{", "["):
        yield from json_calls("</s>")(body)
        return
    name = yield from text.run(_NAME)
    if (yield from text.took("[CALL_ID]")):
        yield from text.run(_NAME)
    yield from text.took("[ARGS]")
    if not name or (yield from text.spaces()) not in ("{", ""):
        raise Broken("no name or no arguments")
    body.give([(yield from named_arguments(text, name))])
    yield from closed(body, "</s>")


def python_list(closing: str) -> Read:
    """Reader of calls in Python's notation, or JSON, up to a closing tag."""

    def read(body: Body) -> Reading[None]:
        text, taken = body.text, list[str]()
        while (yield from text.spaces(_BETWEEN)) and (yield from text.took(closing)) is None:
            taken.append((yield from text.run(_NAME)))
            if (yield from text.spaces()) not in ("(", "[", "{"):
                raise Broken("no call")
            taken += [(yield from text.bracketed("python")), "\n"]
        body.give(calls_in_python("".join(taken), body.offered))

    return read


def calls_in_python(source: str, offered: Offered) -> list[ToolCall]:
    """Calls in Python's notation, or JSON; values without a name go to parameters in their order.

    Raises
    ------
    ValueError
        They are neither.
    """
    if source.lstrip("[ \n").startswith("{"):
        return calls_of(source)
    found: list[ToolCall] = []
    for name, positional, named in python_calls(source):
        known = [key for key in offered.parameters.get(name, ()) if key not in named]
        if len(positional) > len(known):
            raise ValueError(f"{name}: more values than parameters")
        given = dict(zip(known, positional, strict=False))
        found.append(ToolCall(name, {**given, **named}))
    return found


def bare_calls(*, strict: bool) -> Callable[[Body], Reading[bool]]:
    """Reader of calls that are written as JSON and nothing else, where the answer begins.

    As an answer may be JSON as well, only functions that were offered count as called.

    Parameters
    ----------
    strict : bool
        Whether a call needs arguments to be one.
    """

    def read(body: Body) -> Reading[bool]:
        text = body.text
        there = _bare_there(text)
        if there is not None:
            source, calls = there
            if not _are_calls(source, calls, body.offered, strict=strict):
                return False
            body.give(calls)
            yield from text.spaces(_BETWEEN)
            return True
        mark = yield from text.spaces()
        if mark not in ("{", "[", "`"):
            return False
        fenced = bool((yield from text.took(_FENCE)))
        if fenced:
            yield from text.run(_FENCED)
            mark = yield from text.spaces()
        pythonic = yield from _pythonic(text)
        if not pythonic and not (yield from _begins_call(text)):
            return False
        source = yield from text.bracketed("python" if pythonic else "json")
        calls = _calls_in(source, body.offered)
        if fenced:
            yield from text.spaces()
            yield from text.expect(_FENCE)
        if not _are_calls(source, calls, body.offered, strict=strict):
            return False
        body.give(calls)
        yield from text.spaces(_BETWEEN)
        return True

    return read


def _bare_there(text: Arriving) -> tuple[str, list[ToolCall]] | None:
    """Calls in an object that is there as a whole, which is passed, and its source."""
    begun = _BARE.match(text.text, text.at)
    if begun is None or begun[1] not in CALL_KEYS:
        return None
    at = begun.end()
    found = decoded_at(text.text, at) if text.text.find("}", at) >= 0 else None
    if found is None:
        return None
    text.at = found[1]
    return text.text[at : text.at], calls_in(found[0])


def _are_calls(source: str, calls: Sequence[ToolCall], offered: Offered, *, strict: bool) -> bool:
    if any(call.name not in offered for call in calls):
        return False
    return not strict or all(_has_arguments(source, call) for call in calls)


def _pythonic(text: Arriving) -> Reading[bool]:
    """Whether a list begins with a call in Python's notation; the list is not passed."""
    if not text.text.startswith("[", text.at):
        return False
    while True:
        found = _LISTED.match(text.text, text.at)
        if found is not None and (found.end() < len(text.text) or text.ended):
            return text.text.startswith("(", found.end())
        if found is None or text.ended:
            return False
        yield ""


def _begins_call(text: Arriving) -> Reading[bool]:
    """Whether the first key of an object is one of a call's, so that other JSON need not wait."""
    while True:
        found = _FIRST.match(text.text, text.at)
        if found is not None:
            return found[1] in CALL_KEYS
        if text.ended or len(text.text) - text.at > _FAR:
            return False
        yield ""


_FAR = 100  # characters before the first key
_BARE = re.compile(r'\s*+(?=\{\s*"([^"\\]{0,40})")')
_FIRST = re.compile(r'[\[\s]*\{\s*"([^"\\]{0,40})"')
_LISTED = re.compile(r"\[\s*(?:[^\W\d][\w.]*)?")


def _calls_in(source: str, offered: Offered) -> list[ToolCall]:
    listed = _LISTED.match(source)
    if listed is not None and source.startswith("(", listed.end()):
        return calls_in_python(source, offered)
    return calls_of(source)


def _has_arguments(source: str, call: ToolCall) -> bool:
    return bool(call.arguments) or '"arguments"' in source or '"parameters"' in source
