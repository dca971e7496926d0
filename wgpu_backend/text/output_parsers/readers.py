"""Readers of the calls in spans: JSON, names with JSON, and Python's notation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from wgpu_backend.text.output_parsers.calls import (
    CALL_KEYS,
    OfferedTools,
    decode_json,
    decode_json_at,
    make_calls,
    make_keyed_calls,
    parse_arguments,
    parse_calls,
)
from wgpu_backend.text.output_parsers.incoming_text import (
    FormatMismatch,
    IncomingText,
    Reader,
    arrival,
)
from wgpu_backend.text.output_parsers.literals import match_simple_calls, parse_calls_in_python
from wgpu_backend.text.output_parsers.parts import ToolCall
from wgpu_backend.text.output_parsers.spans import Body, Matched, SpanReader

_BETWEEN = re.compile(r"[\s,;]*")
# Models sometimes write a bracket too many.
_STRAY = re.compile(r"[\s,;}\]]*")
_NAME = re.compile(r"[\w.\-/]*")
_MISTRAL = re.compile(r"\s*+([\w.\-/]++)(?:\[CALL_ID\][\w.\-/]*+)?(?:\[ARGS\])?\s*+(?=\{)")
HEADER_CHARS = 48
"""Characters of a short call; fewer are not read before the next piece, so that tags are whole."""
_NUMBERED = re.compile(r":\d+$")
_FENCED = re.compile(r"[\w]*")
_FENCE = "```"
_SPACES = re.compile(r"\s*+")
# The beginning of an object or a list of them, and the end: not before a word, or an escape of a
# string.
_JSON = re.compile(r'(\[?+)\s*+\{\s*+(?:"|\Z)')
_VALUE = re.compile(r"\s*+(?=[{\[])")
_JSON_END = re.compile(r"\}(?=\s*+(?:[}\],;<\[{`|]|\Z))")
_LIST_END = re.compile(r"\](?=\s*+(?:[;<\[{`|]|\Z))")
_MAX_DECODES = 4
# Closing tags up to which a text is parsed, each time from its beginning.
_MAX_CLOSINGS = 8


def json_reader(*closings: str, keyed: bool = False) -> SpanReader:
    """Return a reader of one or several JSON objects or lists with calls.

    Parameters
    ----------
    *closings : str
        Tags that end them; models omit them at times, so other text ends them, too.
    keyed : bool
        Whether an object has the function's name as its only key.
    """
    calls, end = make_keyed_calls if keyed else make_calls, _end(closings)

    def read(body: Body) -> Reader[None]:
        text = body.text
        text.skip(_SPACES)
        if not text.text.startswith("{", text.at):
            yield from skip_to_json(text)
        while True:
            body.give(calls((yield from read_json(text))))
            if text.skip(end.passed) is not None:
                return
            if (yield from text.skip_spaces(_BETWEEN)) not in ("{", "["):
                break
        yield from skip_closing(body, *closings)

    def match(text: str, at: int, offered: OfferedTools) -> Matched:
        del offered
        found = _match_json(text, at)
        ended = end.passed.match(text, found[1]) if found else None
        return (calls(found[0]), ended.end()) if found and ended else None

    return SpanReader(read, match, closings[0] if len(closings) == 1 else "}")


def _match_json(text: str, at: int) -> tuple[object, int] | None:
    """Decode an object or a list that has arrived as a whole; return it and the place after it."""
    begun = _VALUE.match(text, at)
    return decode_json_at(text, begun.end()) if begun else None


def match_arguments(text: str, at: int) -> tuple[Mapping[str, object], int] | None:
    """Decode an object of arguments that has arrived as a whole, as `_match_json` does."""
    found = _match_json(text, at)
    return (parse_arguments(found[0]), found[1]) if found else None


class _End(NamedTuple):
    """Patterns of the tags that end calls."""

    # The tags, with the stray characters that models write before one.
    passed: re.Pattern[str]
    # Something else, with such characters before it: there is no tag.
    other: re.Pattern[str]


@lru_cache(maxsize=64)
def _end(closings: tuple[str, ...]) -> _End:
    longest = sorted(closings, key=len, reverse=True)
    firsts = re.escape("".join(tag[0] for tag in longest))
    tags = "|".join(map(re.escape, longest)) or r"(?!)"
    other = rf"(?={_STRAY.pattern}+[^\s,;}}\]`{firsts}])"
    return _End(re.compile(rf"{_STRAY.pattern}+(?:{tags})"), re.compile(other))


def read_json(text: IncomingText) -> Reader[object]:
    """Read a JSON value, decoded in one step if all of it has arrived.

    Raises
    ------
    ValueError
        It is not JSON.
    """
    begun = _JSON.match(text.text, text.at)
    if begun is not None:
        # Most values are decoded at once when their last bracket has come. A bracket of a string
        # may look like it: after some of those the value is read as it comes.
        end, arrived = (_LIST_END, _may_end_list) if begun[1] else (_JSON_END, _may_end_json)
        seen = 0
        for _ in range(_MAX_DECODES):
            if end.search(text.text, text.at + seen) is None and not text.ended:
                yield arrived
            found = decode_json_at(text.text, text.at)
            if found is not None:
                text.at = found[1]
                return found[0]
            seen = len(text.text) - text.at
            if text.ended:
                break
    return decode_json((yield from text.read_brackets()))


def _may_end_json(piece: str) -> bool:
    return "}" in piece and _JSON_END.search(piece) is not None


def _may_end_list(piece: str) -> bool:
    return "]" in piece and _LIST_END.search(piece) is not None


def skip_to_json(text: IncomingText) -> Reader[str]:
    """Skip spaces and the beginning of a code block before JSON.

    Raises
    ------
    FormatMismatch
        Something else comes.
    """
    mark = yield from text.skip_spaces()
    if mark == "`" and (yield from text.take(_FENCE)):
        yield from text.read_while(_FENCED)
        mark = yield from text.skip_spaces()
    if mark not in ("{", "["):
        raise FormatMismatch("JSON was expected" if mark else "the answer ends early")
    return mark


def skip_closing(body: Body, *closings: str) -> Reader[None]:
    """Skip one of the closing tags if it comes, with spaces and a surplus bracket before it."""
    text = body.text
    if not closings:
        return
    end = _end(closings)
    if text.skip(end.passed) is not None:
        return
    if end.other.match(text.text, text.at):
        return
    text.mark()
    yield from text.skip_spaces(_STRAY)
    fence = yield from text.take(_FENCE)
    if fence and _FENCE in closings:
        return
    if fence:
        yield from text.skip_spaces(_STRAY)
    if (yield from text.take(*closings)) is None and not fence:
        text.rewind()
        text.mark()


def read_arguments(text: IncomingText, name: str) -> Reader[ToolCall]:
    """Read the JSON arguments of a call whose name was read, in a code block or not."""
    name = name.strip()
    if not text.text.startswith("{", text.at):
        yield from skip_to_json(text)
    arguments = parse_arguments((yield from read_json(text)))
    if not name:
        raise ValueError("the tool call has no name")
    return ToolCall(name, arguments)


def section_reader(call: str, separators: Sequence[str], end: str, *closings: str) -> SpanReader:
    """Return a reader of a section of calls, each of them a name and JSON between tags.

    Parameters
    ----------
    call : str
        Tag that begins a call.
    separators : sequence of str
        The last stands between name and JSON; the name is between it and the one before.
    end : str
        Tag that ends a call.
    *closings : str
        Tags that end the section.
    """
    ways = [rf"[^<\n]*+{re.escape(separator)}\s*+" for separator in separators[:-1]]
    # DeepSeek R1 writes a type before the separator, and the name after it.
    ways.append(
        rf"(?:([^<\n]++){re.escape(separators[-1])}\s*+(?=[{{`])"
        rf"|[^<\n]*+{re.escape(separators[-1])}\s*+([^\n{{`][^\n]*+)\n)"
    )
    begun = re.compile(rf"\s*+{re.escape(call)}" + "".join(ways))
    ended = re.compile(rf"\s*+(?:{'|'.join(map(re.escape, closings)) or '(?!)'})")

    def read(body: Body) -> Reader[None]:
        text = body.text
        while True:
            # Name and tags are matched by one pattern if they have arrived.
            if text.text.find("{", text.at) < 0:
                yield from text.fill(HEADER_CHARS)
            found = text.skip(begun)
            if found is None and not (yield from _another(body, call, closings)):
                return
            name = (found[1] or found[2]) if found else (yield from _read_name(text, separators))
            made = yield from read_arguments(text, name)
            body.give([ToolCall(_bare_name(made.name), made.arguments)])
            yield from skip_closing(body, end)
            if text.skip(ended) is not None:
                return

    call_end = _end((end,)).passed

    def match(text: str, at: int, offered: OfferedTools) -> Matched:
        del offered
        calls: list[ToolCall] = []
        while (header := begun.match(text, at)) is not None:
            name = (header[1] or header[2]).strip()
            found = match_arguments(text, header.end())
            if found is None or not name or (after := call_end.match(text, found[1])) is None:
                return None
            calls.append(ToolCall(_bare_name(name), found[0]))
            at = after.end()
            if (last := ended.match(text, at)) is not None:
                return calls, last.end()
        return None

    return SpanReader(read, match, end)


def _bare_name(name: str) -> str:
    """Return a function's name without the type before it and the number after it."""
    name = name.removeprefix("functions.")
    return _NUMBERED.sub("", name) if ":" in name else name


def _read_name(text: IncomingText, separators: Sequence[str]) -> Reader[str]:
    """Read a function's name before its arguments."""
    name = ""
    for separator in separators:
        name = yield from text.read_until(separator)
    if (yield from text.skip_spaces()) not in ("{", "`"):
        name = yield from text.read_until("\n")
    return name


def _another(body: Body, call: str, closings: Sequence[str]) -> Reader[bool]:
    """Skip the tag that begins another call or ends the section."""
    text = body.text
    yield from text.skip_spaces()
    tag = yield from text.take(call, *closings)
    if tag is None and not body.given:
        raise FormatMismatch(
            "the answer ends early" if text.fell_short else "the text is not a tool call"
        )
    return tag == call


def _read_mistral(body: Body) -> Reader[None]:
    """Read a JSON list of calls, or a name and its arguments."""
    text = body.text
    if text.text.find("{", text.at) < 0:
        yield from text.fill(HEADER_CHARS)
    named = text.skip(_MISTRAL)
    if named is not None:
        body.give([(yield from read_arguments(text, named[1]))])
        yield from skip_closing(body, "</s>")
        return
    if (yield from text.skip_spaces()) in ("{", "["):
        yield from _MISTRAL_JSON.read(body)
        return
    name = yield from text.read_while(_NAME)
    if (yield from text.take("[CALL_ID]")):
        yield from text.read_while(_NAME)
    yield from text.take("[ARGS]")
    if not name or (yield from text.skip_spaces()) not in ("{", ""):
        raise FormatMismatch("the tool call has no name or no arguments")
    body.give([(yield from read_arguments(text, name))])
    yield from skip_closing(body, "</s>")


def _match_mistral(text: str, at: int, offered: OfferedTools) -> Matched:
    named = _MISTRAL.match(text, at)
    if named is None:
        return _MISTRAL_JSON.match(text, at, offered)
    found = match_arguments(text, named.end())
    if found is None:
        return None
    ended = _end(("</s>",))
    after = ended.passed.match(text, found[1]) or ended.other.match(text, found[1])
    return ([ToolCall(named[1], found[0])], after.end()) if after else None


_MISTRAL_JSON = json_reader("</s>")
READ_MISTRAL = SpanReader(_read_mistral, _match_mistral)
"""A reader of the calls of Mistral's models."""


def python_reader(closing: str) -> SpanReader:
    """Return a reader of calls in Python's notation or JSON, up to a closing tag."""
    arrived, ended = arrival(closing), re.compile(rf"\s*+{re.escape(closing)}")

    def read(body: Body) -> Reader[None]:
        text = body.text
        if not text.ended and text.text.find(closing, text.at) < 0:
            # The calls are emitted together, when that tag comes.
            yield arrived
        simple = match_simple_calls(text.text, text.at)
        if simple is not None and (end := ended.match(text.text, simple[1])) is not None:
            text.at = end.end()
            body.give(ToolCall(name, named) for name, _, named in simple[0])
            return
        if not body.lenient:
            try:
                body.give((yield from _read_python(body, closing)))
            except (ValueError, RecursionError):
                # Again from the beginning of the span, whose strings may contain unescaped
                # quotation marks.
                text.rewind()
                text.mark()
            else:
                return
        body.give((yield from _read_unescaped(body, closing)))

    def match(text: str, at: int, offered: OfferedTools) -> Matched:
        del offered
        simple = match_simple_calls(text, at)
        end = ended.match(text, simple[1]) if simple else None
        if simple is None or end is None:
            return None
        return [ToolCall(name, named) for name, _, named in simple[0]], end.end()

    return SpanReader(read, match, closing)


def _read_python(body: Body, closing: str) -> Reader[list[ToolCall]]:
    """Read calls in Python's notation, in a code block or not, and their closing tag."""
    text, taken = body.text, list[str]()
    fenced = (yield from text.skip_spaces()) == "`" and (yield from text.take(_FENCE))
    if fenced:
        yield from text.read_while(_FENCED)
    while (yield from text.skip_spaces(_BETWEEN)) and (yield from text.take(closing)) is None:
        if fenced and (yield from text.take(_FENCE)):
            continue
        taken.append((yield from text.read_while(_NAME)))
        if (yield from text.skip_spaces()) not in ("(", "[", "{"):
            raise FormatMismatch("the text is not a tool call")
        taken += [(yield from text.read_brackets("python")), "\n"]
    return parse_python_calls("".join(taken), body.offered)


def _read_unescaped(body: Body, closing: str) -> Reader[list[ToolCall]]:
    """Read calls whose strings may contain their own quotation mark, and their closing tag.

    Raises
    ------
    FormatMismatch
        There are no such calls.
    """
    text, source = body.text, ""
    for _ in range(_MAX_CLOSINGS):
        source += yield from text.read_until(closing)
        try:
            return parse_python_calls(source, body.offered, escaped=False)
        except (ValueError, RecursionError):
            # The tag may be part of a string.
            source += closing
    raise FormatMismatch("the text is not a tool call")


def parse_python_calls(
    source: str, offered: OfferedTools, *, escaped: bool = True
) -> list[ToolCall]:
    """Parse calls in Python's notation or JSON; positional values take parameters in order.

    Parameters
    ----------
    source : str
        The calls.
    offered : OfferedTools
        Functions that may be called.
    escaped : bool
        Whether quotation marks in strings are escaped.

    Raises
    ------
    ValueError
        The text is neither Python calls nor JSON.
    """
    if source.lstrip("[ \n").startswith("{"):
        return parse_calls(source)
    found: list[ToolCall] = []
    parameters = None if escaped else offered.parameters
    for name, positional, named in parse_calls_in_python(source, parameters=parameters):
        known = [key for key in offered.parameters.get(name, ()) if key not in named]
        if len(positional) > len(known):
            raise ValueError(f"{name}: more values than parameters")
        given = dict(zip(known, positional, strict=False))
        found.append(ToolCall(name, {**given, **named}))
    return found


def bare_reader(*, strict: bool) -> Callable[[Body], Reader[bool]]:
    """Return a reader of calls that are bare JSON at the beginning of an answer.

    As an answer may be JSON as well, only functions that were offered count as called.

    Parameters
    ----------
    strict : bool
        Whether a call must have arguments.
    """

    def read(body: Body) -> Reader[bool]:
        text = body.text
        there = _bare_there(text)
        if there is not None:
            source, calls = there
            if not _are_calls(source, calls, body.offered, strict=strict):
                return False
            body.give(calls)
            yield from text.skip_spaces(_BETWEEN)
            return True
        mark = yield from text.skip_spaces()
        if mark not in ("{", "[", "`"):
            return False
        fenced = bool((yield from text.take(_FENCE)))
        if fenced:
            yield from text.read_while(_FENCED)
            mark = yield from text.skip_spaces()
        pythonic = yield from _is_python(text)
        if not pythonic and not (yield from _begins_call(text)):
            return False
        source = yield from text.read_brackets("python" if pythonic else "json")
        calls = _calls_in(source, body.offered)
        if fenced:
            yield from text.skip_spaces()
            yield from text.expect(_FENCE)
        if not _are_calls(source, calls, body.offered, strict=strict):
            return False
        body.give(calls)
        yield from text.skip_spaces(_BETWEEN)
        return True

    return read


def _bare_there(text: IncomingText) -> tuple[str, list[ToolCall]] | None:
    """Return the calls in an object that has arrived as a whole, and its source."""
    begun = _BARE.match(text.text, text.at)
    if begun is None or begun[1] not in CALL_KEYS:
        return None
    at = begun.end()
    found = decode_json_at(text.text, at) if text.text.find("}", at) >= 0 else None
    if found is None:
        return None
    text.at = found[1]
    return text.text[at : text.at], make_calls(found[0])


def _are_calls(
    source: str, calls: Sequence[ToolCall], offered: OfferedTools, *, strict: bool
) -> bool:
    if any(call.name not in offered for call in calls):
        return False
    return not strict or all(_has_arguments(source, call) for call in calls)


def _is_python(text: IncomingText) -> Reader[bool]:
    """Return whether a list begins with a call in Python's notation, without reading it."""
    if not text.text.startswith("[", text.at):
        return False
    while True:
        found = _LISTED.match(text.text, text.at)
        if found is not None and (found.end() < len(text.text) or text.is_over()):
            return text.text.startswith("(", found.end())
        if found is None:
            return False
        yield ""


def _begins_call(text: IncomingText) -> Reader[bool]:
    """Return whether an object's first key is one of a call's, so that other JSON need not wait."""
    while True:
        found = _FIRST.match(text.text, text.at)
        if found is not None:
            return found[1] in CALL_KEYS
        if len(text.text) - text.at > _FAR or text.is_over():
            return False
        yield ""


# Characters before the first key, after which an object is not a call.
_FAR = 100
_BARE = re.compile(r'\s*+(?=\{\s*"([^"\\]{0,40})")')
_FIRST = re.compile(r'[\[\s]*\{\s*"([^"\\]{0,40})"')
_LISTED = re.compile(r"\[\s*(?:[^\W\d][\w.]*)?")


def _calls_in(source: str, offered: OfferedTools) -> list[ToolCall]:
    listed = _LISTED.match(source)
    if listed is not None and source.startswith("(", listed.end()):
        return parse_python_calls(source, offered)
    return parse_calls(source)


def _has_arguments(source: str, call: ToolCall) -> bool:
    return bool(call.arguments) or '"arguments"' in source or '"parameters"' in source
