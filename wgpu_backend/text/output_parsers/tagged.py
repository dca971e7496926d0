"""Calls whose arguments stand between tags, each value as plain text.

A value may contain any text, tags too. Its closing tag is therefore one that is followed by another
parameter or the end of the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from wgpu_backend.text.output_parsers.calls import OfferedTools
from wgpu_backend.text.output_parsers.incoming_text import (
    END,
    FormatMismatch,
    IncomingText,
    Reader,
    arrival,
)
from wgpu_backend.text.output_parsers.kinds import Kinds
from wgpu_backend.text.output_parsers.parts import ToolCall
from wgpu_backend.text.output_parsers.patterns import compile_possessive
from wgpu_backend.text.output_parsers.readers import (
    HEADER_CHARS,
    json_reader,
    match_arguments,
    read_arguments,
)
from wgpu_backend.text.output_parsers.spans import Body, Matched, SpanReader
from wgpu_backend.text.output_parsers.values import convert

_KEY = re.compile(r'"?+([^"\n<>]+)"?\s*(?:(?:string|type)="(\w+)"?)?\s*')
_SHORT_KEY = r'"?+([^"\n<>]{1,256})"?\s*(?:(?:string|type)="(\w{1,32})"?)?\s*'
_HEADER = re.compile(r'"?+([^"\n<>{}]{1,256})"?[^\n<>]*')
_GLM_NAME = re.compile(r"[\w.\-/:]*")
# Times that a call is waited for, and characters of its last tags and the spaces between them.
_MAX_WAITS = 8
_MAX_TAGS = 128
_CDATA = "<![CDATA["
_MAX_DEPTH = 50
_ANY = Kinds()
# By the attributes of a value that is plain text.
_TOLD: dict[str, Kinds] = dict.fromkeys(("string", "true"), Kinds(frozenset({"string"})))


@dataclass(frozen=True, slots=True, eq=False)
class Tagging:
    """The tags of a format, compared by identity, since compiled patterns are cached by it.

    Parameters
    ----------
    call, named : str
        Tags before and after a function's name; `call` is empty if the span's own tag begins it.
    parameter, keyed : str
        Tags before and after a parameter's name.
    closing : str
        Tag that ends a value.
    end : str
        Tag that ends a call; empty if the span's own closing tag does.
    closings : tuple of str
        Tags that end the span around calls.
    lines : bool
        Whether a value may stand on lines of its own, whose breaks are not part of its text.
    cdata : bool
        Whether a value may be a CDATA section.
    """

    call: str
    named: str
    parameter: str
    keyed: str
    closing: str
    end: str = ""
    closings: tuple[str, ...] = ()
    lines: bool = False
    cdata: bool = False
    key_end: str = ""

    @property
    def inner(self) -> tuple[str, ...]:
        """Return all tags except those of the span."""
        names = (self.call, self.named, self.parameter, self.keyed, self.key_end)
        return tuple(tag for tag in (*names, self.closing, self.end) if len(tag) > len('">'))


class _Following(NamedTuple):
    """The tags that may follow the closing tag of a value."""

    orders: list[tuple[str, ...]]
    # The orders as one pattern, tried first: most closing tags are real ones.
    pattern: re.Pattern[str]

    def matches(self, text: IncomingText, at: int) -> bool | None:
        """Return whether the tags follow; None if they may still arrive."""
        return True if self.pattern.match(text.text, at) else text.is_followed_by(at, self.orders)


@lru_cache(maxsize=64)
def _compile_following(tagging: Tagging) -> _Following:
    last = (*tagging.closings, END)
    if not tagging.end:
        orders = [(tagging.parameter,), *((each,) for each in last)]
    elif not tagging.closings:
        orders = [(tagging.parameter,), (tagging.end,)]
    else:
        after = (tagging.call, *last)
        orders = [(tagging.parameter,), *((tagging.end, each) for each in after)]
    told = (order for order in orders if END not in order)
    ways = (r"\s*" + r"\s*".join(map(re.escape, order)) for order in told)
    return _Following(orders, re.compile("|".join(ways)))


class _Patterns(NamedTuple):
    """Patterns of the parts of a call, for parts that have arrived as a whole."""

    # Groups of `call`: the name. Of `parameter`: name, type, line break, value.
    call: re.Pattern[str]
    parameter: re.Pattern[str]
    end: re.Pattern[str]
    closing: re.Pattern[str]
    # The first tag, the last one with the tag after it, and a test for the arrival of the latter.
    opened: re.Pattern[str]
    followed: re.Pattern[str]
    arrival: Callable[[str], bool]


@lru_cache(maxsize=64)
def _compile_patterns(tagging: Tagging) -> _Patterns:
    parameter, keyed, key_end = map(re.escape, (tagging.parameter, tagging.keyed, tagging.key_end))
    tag, first = re.escape(tagging.closing), re.escape(tagging.closing[0])
    closing = f"{tag}(?={_compile_following(tagging).pattern.pattern})"
    value = rf"([^{first}]*+(?:(?!{closing}){first}[^{first}]*+)*+)"
    lines = r"(\n?)" if tagging.lines else "()"
    cdata = rf"(?!{re.escape(_CDATA)})" if tagging.cdata else ""
    key = _SHORT_KEY + (rf"(?:{key_end})?\s*" if key_end else "")
    named = rf"{_HEADER.pattern}{re.escape(tagging.named)}"
    closings = "|".join(map(re.escape, tagging.closings)) or r"(?!)"
    # The tag that shows that the call has ended; without a tag of its own it is the span's.
    last = (tagging.call, *tagging.closings) if tagging.end and tagging.closings else ()
    last = last or ((tagging.end,) if tagging.end else tagging.closings)
    followed = "|".join(map(re.escape, last))
    if tagging.end and tagging.end not in last:
        followed = rf"{re.escape(tagging.end)}\s*+(?:{followed})"
    return _Patterns(
        re.compile(rf"\s*+{re.escape(tagging.call)}{named}" if tagging.call else r"(?!)"),
        compile_possessive(rf"\s*+{parameter}{key}{keyed}{cdata}{lines}{value}{closing}"),
        re.compile(rf"\s*+(?:{re.escape(tagging.end)})" if tagging.end else rf"\s*+(?={closings})"),
        re.compile(rf"\s*+(?:{closings})"),
        re.compile(rf"\s*+{re.escape(tagging.call)}" if tagging.call else rf"\s*+{parameter}"),
        re.compile(followed),
        arrival(*last),
    )


def tagged_reader(tagging: Tagging) -> SpanReader:
    """Return a reader of calls with tags, in sequence, up to the end of the span."""

    def read(body: Body) -> Reader[None]:
        text, there = body.text, _compile_patterns(tagging)
        while True:
            if there.opened.match(text.text, text.at) is None:
                yield from text.fill(HEADER_CHARS)
            yield from _wait_call(text, there)
            header = text.skip(there.call)
            if header is None:
                yield from text.skip_spaces()
                tag = yield from text.take(tagging.call, *tagging.closings)
                if tag != tagging.call:
                    break
                header = _HEADER.fullmatch((yield from text.read_until(tagging.named)))
            if header is None:
                raise FormatMismatch("the tool call has no name")
            yield from read_tagged_call(body, tagging, header[1].strip())
            if text.skip(there.closing) is not None:
                return
        if not body.given:
            raise FormatMismatch("the text is not a tool call")

    return SpanReader(read, partial(_match_tagged_calls, tagging), tagging.end)


def _match_tagged_calls(tagging: Tagging, text: str, at: int, offered: OfferedTools) -> Matched:
    """Read the calls of a span that has arrived as a whole."""
    there, calls = _compile_patterns(tagging), list[ToolCall]()
    while (header := there.call.match(text, at)) is not None:
        found = _match_tagged_call(text, header.end(), header[1], there, offered)
        if found is None:
            return None
        calls.append(found[0])
        at = found[1]
        if (end := there.closing.match(text, at)) is not None:
            return calls, end.end()
    return None


def _match_tagged_call(
    text: str, at: int, name: str, there: _Patterns, offered: OfferedTools
) -> tuple[ToolCall, int] | None:
    """Read the arguments of a call that has arrived as a whole; return it and the place after."""
    arguments, name = dict[str, object](), name.strip()
    while (found := _match_parameter(text, at, there)) is not None:
        key, told, value, at = found
        kinds = offered.kinds(name, key) if told is None else _TOLD.get(told, _ANY)
        arguments[key] = convert(value, kinds)
    end = there.end.match(text, at)
    return (ToolCall(name, arguments), end.end()) if end and name else None


def read_tagged_call(body: Body, tagging: Tagging, name: str) -> Reader[None]:
    """Read the arguments of a call after its name.

    Raises
    ------
    FormatMismatch
        Something other than parameters comes.
    """
    text, arguments, there = body.text, dict[str, object](), _compile_patterns(tagging)
    while True:
        found = None if body.lenient else _match_parameter(text.text, text.at, there)
        if found is not None:
            key, told, value, text.at = found
        else:
            if text.skip(there.end) is not None:
                break
            yield from text.skip_spaces()
            tag = yield from text.take(tagging.parameter, tagging.end)
            if tag is None and not (yield from _is_at_end(body, tagging)):
                raise FormatMismatch("a parameter was expected")
            if tag != tagging.parameter:
                break
            key, told, value = yield from _wait_parameter(body, tagging)
        kinds = body.offered.kinds(name, key) if told is None else _TOLD.get(told, _ANY)
        arguments[key] = convert(value, kinds)
    if not name:
        raise ValueError("no name")
    body.give([ToolCall(name, arguments)])


def _wait_call(text: IncomingText, there: _Patterns) -> Reader[None]:
    """Wait until a call's last tag and the tag after it have arrived, to read most calls at once.

    What looks like it may be part of a value: after some of those the call is read as it comes.
    """
    begun = there.opened.match(text.text, text.at)
    if begun is None:
        return
    start = begun.end() - text.at
    for _ in range(_MAX_WAITS):
        if text.ended or there.followed.search(text.text, text.at + start) is not None:
            return
        # What was searched is not searched again, except a tag that has arrived in part.
        start = max(start, len(text.text) - text.at - _MAX_TAGS)
        yield there.arrival


def _match_parameter(
    text: str, at: int, there: _Patterns
) -> tuple[str, str | None, str, int] | None:
    """Read a parameter that has arrived: its name, type and text, and the place after it."""
    found = there.parameter.match(text, at)
    if found is None:
        return None
    key, told, line, value = found.groups()
    if line:
        if value and value[-1] != "\n" and text[found.end() : found.end() + 1] != "\n":
            return None
        value = value.removesuffix("\n")
    return key.strip(), told, value, found.end()


def _wait_parameter(body: Body, tagging: Tagging) -> Reader[tuple[str, str | None, str]]:
    """Read the rest of a parameter after its first tag."""
    written = (yield from body.text.read_until(tagging.keyed)).rstrip()
    key = _KEY.fullmatch(written.removesuffix(tagging.key_end))
    if key is None:
        raise FormatMismatch("the parameter has no name")
    return key[1].strip(), key[2], (yield from _read_value(body, tagging))


def _is_at_end(body: Body, tagging: Tagging) -> Reader[bool]:
    """Return whether the call ends without its closing tag."""
    found = yield from body.text.peek_tag(*tagging.closings, *filter(None, (tagging.call,)))
    ends = not tagging.end or body.lenient
    return (ends and found is not None) or (body.lenient and not (yield from body.text.peek()))


def _read_value(body: Body, tagging: Tagging) -> Reader[str]:
    """Read the text of a value, and skip its closing tag."""
    text, taken = body.text, list[str]()
    if tagging.cdata and (yield from text.take(_CDATA)):
        return (yield from text.read_until("]]>" + tagging.closing))
    lines = bool(tagging.lines and (yield from text.take("\n")))
    if body.lenient:
        return _read_leniently(text, tagging).removesuffix("\n" if lines else "")
    following, tag = _compile_following(tagging), tagging.closing
    while True:
        found = text.text.find(tag, text.at)
        end = found if found >= 0 else max(text.at, len(text.text) - len(tag) + 1)
        known = following.matches(text, found + len(tag)) if found >= 0 else None
        taken.append(text.text[text.at : end])
        text.at = end
        if (
            known
            and (value := _finish_value(text, taken, found + len(tag), lines=lines)) is not None
        ):
            text.at += len(tag)
            return value
        if known is None:
            yield from text.wait(arrival(tag) if found < 0 else "")
        else:
            taken.append(tag)
            text.at += len(tag)


def _finish_value(text: IncomingText, taken: list[str], after: int, *, lines: bool) -> str | None:
    """Return the value, or None if its closing tag is not on a line of its own as expected."""
    value = "".join(taken)
    if lines and value and not value.endswith("\n") and text.text[after : after + 1] != "\n":
        return None
    return value.removesuffix("\n") if lines else value


@lru_cache(maxsize=64)
def _any_tag(tagging: Tagging) -> re.Pattern[str]:
    ends = (tagging.closing, tagging.parameter, tagging.end, tagging.call, *tagging.closings)
    return re.compile("|".join(map(re.escape, filter(None, ends))))


def _read_leniently(text: IncomingText, tagging: Tagging) -> str:
    """Read a value up to any tag, in an answer that is complete."""
    found = _any_tag(tagging).search(text.text, text.at)
    end = found.start() if found else len(text.text)
    value, text.at = text.text[text.at : end], end
    if text.text.startswith(tagging.closing, end):
        text.at += len(tagging.closing)
    return value


def read_glm_call(body: Body, tagging: Tagging, *separators: str) -> Reader[None]:
    """Read a call that is a name and pairs of keys and values, or JSON.

    Parameters
    ----------
    body : Body
        The span's content.
    tagging : Tagging
        Tags of keys and values.
    *separators : str
        Tags of which one may stand between name and pairs.
    """
    text, there = body.text, _compile_patterns(tagging)
    named = text.skip(_glm(tagging))
    if named is not None:
        yield from _wait_call(text, there)
        yield from read_tagged_call(body, tagging, named[1])
    else:
        yield from text.skip_spaces()
        name = yield from text.read_while(_GLM_NAME)
        yield from text.skip_spaces()
        yield from text.take(*separators)
        if (yield from text.peek_tag("```", "{")):
            body.give([(yield from read_arguments(text, name))])
            yield from text.skip_spaces()
            yield from text.take("```")
            yield from text.skip_spaces()
        else:
            yield from read_tagged_call(body, tagging, name.strip())
    if text.skip(there.closing) is None:
        yield from text.take(*tagging.closings)


@lru_cache(maxsize=64)
def _glm(tagging: Tagging) -> re.Pattern[str]:
    """Return the pattern of a GLM call's name, followed by a parameter."""
    return re.compile(rf"\s*+({_GLM_NAME.pattern}+)\s*+(?={re.escape(tagging.parameter)})")


def tool_call_reader(tagging: Tagging, functions: Tagging, *separators: str) -> SpanReader:
    """Return a reader for all formats with ``<tool_call>``."""
    of_json, of_functions = json_reader(*tagging.closings), tagged_reader(functions)
    begun = re.compile(rf"\s*+(?:([{{\[])|{re.escape(functions.call)})")

    def read(body: Body) -> Reader[None]:
        text = body.text
        found = begun.match(text.text, text.at)
        if found is None:
            yield from text.fill(HEADER_CHARS)
            found = begun.match(text.text, text.at)
        mark = "" if found else (yield from text.skip_spaces())
        if (found and found[1]) or mark in ("{", "[", "`"):
            yield from of_json.read(body)
        elif found or (mark == "<" and (yield from text.peek_tag(functions.call))):
            yield from of_functions.read(body)
        else:
            yield from read_glm_call(body, tagging, *separators)

    def match(text: str, at: int, offered: OfferedTools) -> Matched:
        found = begun.match(text, at)
        if found is not None:
            return (of_json if found[1] else of_functions).match(text, at, offered)
        named, there = _glm(tagging).match(text, at), _compile_patterns(tagging)
        if named is None:
            return None
        call = _match_tagged_call(text, named.end(), named[1], there, offered)
        end = there.closing.match(text, call[1]) if call else None
        return ([call[0]], end.end()) if call and end else None

    return SpanReader(read, match, tagging.closings[0])


def function_reader(tagging: Tagging, *, fallback: Sequence[str] = ()) -> SpanReader:
    """Return a reader of a call after ``<function=``: a name, and JSON or tags."""

    def read(body: Body) -> Reader[None]:
        text = body.text
        header = _HEADER.fullmatch((yield from text.read_until(tagging.named)))
        if header is None:
            raise FormatMismatch("the tool call has no name")
        if (yield from text.skip_spaces()) == "{":
            body.give([(yield from read_arguments(text, header[1]))])
            yield from text.skip_spaces()
            yield from text.take(tagging.end)
        else:
            yield from read_tagged_call(body, tagging, header[1].strip())
        yield from text.take(*fallback)

    named = re.compile(rf"{_HEADER.pattern}{re.escape(tagging.named)}")
    ended = re.compile(rf"\s*+{re.escape(tagging.end)}")
    longest = max(map(len, fallback), default=0)
    after = re.compile(f"(?:{'|'.join(map(re.escape, fallback))})?+")

    def match(text: str, at: int, offered: OfferedTools) -> Matched:
        header = named.match(text, at)
        if header is None:
            return None
        name, found = header[1].strip(), match_arguments(text, header.end())
        if found is not None:
            end = ended.match(text, found[1])
            call = (ToolCall(name, found[0]), end.end()) if name and end else None
        else:
            there = _compile_patterns(tagging)
            call = _match_tagged_call(text, header.end(), name, there, offered)
        # Closing tags of another format may follow, as far as they have arrived.
        if call is None or call[1] + longest > len(text):
            return None
        last = after.match(text, call[1])
        return [call[0]], last.end() if last else call[1]

    return SpanReader(read, match, tagging.end)


def nested_reader(token: str, closing: str) -> SpanReader:
    """Return a reader of MiniMax M3's calls, whose arguments are nested elements.

    Parameters
    ----------
    token : str
        Text before each tag.
    closing : str
        Tag that ends the span around calls, without the token.
    """

    def read(body: Body) -> Reader[None]:
        text = body.text
        while True:
            yield from text.skip_spaces()
            tag = yield from text.take(f'{token}<invoke name="', token + closing)
            if tag is None or tag.endswith(closing):
                break
            name = yield from text.read_until('">')
            arguments, _ = yield from _read_element(body, token, "invoke", 0)
            given = ((key, value, body.offered.kinds(name, key)) for key, value in arguments)
            body.give([ToolCall(name, {key: _leaf(value, of) for key, value, of in given})])
        if not body.given:
            raise FormatMismatch("the text is not a tool call")

    return SpanReader(read)


def _read_element(
    body: Body, token: str, key: str, depth: int
) -> Reader[tuple[list[tuple[str, object]], str]]:
    """Read the children of an element, and its own text up to its closing tag."""
    if depth > _MAX_DEPTH:
        raise FormatMismatch(f"elements nested deeper than {_MAX_DEPTH}")
    text, children, own = body.text, list[tuple[str, object]](), ""
    while True:
        own += yield from text.read_until(token)
        yield from text.expect("<")
        tag = yield from text.read_until(">")
        if tag == f"/{key}":
            return children, own
        inner, said = yield from _read_element(body, token, tag, depth + 1)
        children.append((tag, _join(inner, said)))


def _join(children: list[tuple[str, object]], said: str) -> object:
    """Make the value of an element: its text, a list of items, or an object."""
    if not children:
        return said
    if all(key == "item" for key, _ in children):
        return [_leaf(value) for _, value in children]
    return {key: _leaf(value) for key, value in children}


def _leaf(value: object, kinds: Kinds = _ANY) -> object:
    return convert(value, kinds) if isinstance(value, str) else value
