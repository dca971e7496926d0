"""Calls whose arguments stand between tags, each value as a text of its own.

A value may hold any text, tags too: its closing tag is one that another parameter follows, or the
end of the call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from wgpu_backend.text.output_parsers.arriving import END, Arriving, Broken, Reading
from wgpu_backend.text.output_parsers.kinds import Kinds
from wgpu_backend.text.output_parsers.parts import ToolCall
from wgpu_backend.text.output_parsers.readers import json_calls, named_arguments
from wgpu_backend.text.output_parsers.spans import Body, Read
from wgpu_backend.text.output_parsers.values import typed

_KEY = re.compile(r'([^"\n<>]+)"?\s*(?:(?:string|type)="(\w+)"?)?\s*')
_SHORT_KEY = r'([^"\n<>]{1,256})"?\s*(?:(?:string|type)="(\w{1,32})"?)?\s*'
_HEADER = re.compile(r'([^"\n<>{}]{1,256})"?[^\n<>]*')
_GLM_NAME = re.compile(r"[\w.\-/:]*")
_CDATA = "<![CDATA["
_MAX_DEPTH = 50
_ANY = Kinds()
_A_TEXT = Kinds(frozenset({"string"}))
_TEXT = ("string", "true")  # what an attribute says of a value that is a text as it stands


@dataclass(frozen=True, slots=True, eq=False)
class Tagging:
    """Tags of a format; one is equal to itself alone, since what is made of it is found by it.

    Parameters
    ----------
    call, named : str
        Before and after a function's name; an empty `call` where the span's own tag begins it.
    parameter, keyed : str
        Before and after a parameter's name.
    closing : str
        Ends a value.
    end : str
        Ends a call; empty where the span's own closing tag does.
    closings : tuple of str
        End what stands around calls.
    lines : bool
        Whether a value may stand on lines of its own, whose breaks are none of its text.
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
        """All tags but those of the span."""
        names = (self.call, self.named, self.parameter, self.keyed, self.key_end)
        return tuple(tag for tag in (*names, self.closing, self.end) if len(tag) > len('">'))


class _Following(NamedTuple):
    """What may come after the closing tag of a value."""

    orders: list[tuple[str, ...]]
    pattern: re.Pattern[str]  # the same; most closing tags are real ones

    def known(self, text: Arriving, at: int) -> bool | None:
        """Whether it comes; None where that is yet to be seen."""
        return True if self.pattern.match(text.text, at) else text.follows(at, self.orders)


@lru_cache(maxsize=64)
def _following(tagging: Tagging) -> _Following:
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


class _There(NamedTuple):
    """What stands in calls, each of it where all of it is there."""

    call: re.Pattern[str]  # tag, name
    parameter: re.Pattern[str]  # name, type, break of a line, value
    end: re.Pattern[str]
    closing: re.Pattern[str]


@lru_cache(maxsize=64)
def _there(tagging: Tagging) -> _There:
    parameter, keyed, key_end = map(re.escape, (tagging.parameter, tagging.keyed, tagging.key_end))
    tag, first = re.escape(tagging.closing), re.escape(tagging.closing[0])
    closing = f"{tag}(?={_following(tagging).pattern.pattern})"
    value = rf"([^{first}]*+(?:(?!{closing}){first}[^{first}]*+)*+)"
    lines = r"(\n?)" if tagging.lines else "()"
    cdata = rf"(?!{re.escape(_CDATA)})" if tagging.cdata else ""
    key = _SHORT_KEY + (rf"(?:{key_end})?\s*" if key_end else "")
    named = rf"{_HEADER.pattern}{re.escape(tagging.named)}"
    closings = "|".join(map(re.escape, tagging.closings)) or r"(?!)"
    return _There(
        re.compile(rf"\s*+{re.escape(tagging.call)}{named}" if tagging.call else r"(?!)"),
        re.compile(rf"\s*+{parameter}{key}{keyed}{cdata}{lines}{value}{closing}"),
        re.compile(rf"\s*+(?:{re.escape(tagging.end)})" if tagging.end else rf"\s*+(?={closings})"),
        re.compile(rf"\s*+(?:{closings})"),
    )


def tagged_calls(tagging: Tagging) -> Read:
    """Reader of calls with tags, one after another, up to the end of the span."""

    def read(body: Body) -> Reading[None]:
        text, there = body.text, _there(tagging)
        while True:
            header = text.passed(there.call)
            if header is None:
                yield from text.spaces()
                tag = yield from text.took(tagging.call, *tagging.closings)
                if tag != tagging.call:
                    break
                header = _HEADER.fullmatch((yield from text.until(tagging.named)))
            if header is None:
                raise Broken("no name")
            yield from tagged_call(body, tagging, header[1].strip())
            if text.passed(there.closing) is not None:
                return
        if not body.given:
            raise Broken("no call")

    return read


def tagged_call(body: Body, tagging: Tagging, name: str) -> Reading[None]:
    """Read what stands in a call after its name.

    Raises
    ------
    Broken
        Something other than parameters.
    """
    text, arguments, there = body.text, dict[str, object](), _there(tagging)
    while True:
        found = None if body.lenient else _parameter(text, there)
        if found is None:
            if text.passed(there.end) is not None:
                break
            yield from text.spaces()
            tag = yield from text.took(tagging.parameter, tagging.end)
            if tag is None and not (yield from _ends(body, tagging)):
                raise Broken("no parameter")
            if tag != tagging.parameter:
                break
            found = yield from _waited(body, tagging)
        key, told, value = found
        kinds = body.offered.kinds(name, key)
        if told is not None:
            kinds = _A_TEXT if told in _TEXT else _ANY
        arguments[key] = typed(value, kinds)
    if not name:
        raise ValueError("no name")
    body.give([ToolCall(name, arguments)])


def _parameter(text: Arriving, there: _There) -> tuple[str, str | None, str] | None:
    """Pass a parameter that is there as a whole: its name, its type, and its text."""
    found = there.parameter.match(text.text, text.at)
    if found is None:
        return None
    key, told, line, value = found.groups()
    if line:
        if value and value[-1] != "\n" and text.text[found.end() : found.end() + 1] != "\n":
            return None
        value = value.removesuffix("\n")
    text.at = found.end()
    return key.strip(), told, value


def _waited(body: Body, tagging: Tagging) -> Reading[tuple[str, str | None, str]]:
    """Read what follows a parameter's first tag."""
    written = (yield from body.text.until(tagging.keyed)).rstrip()
    key = _KEY.fullmatch(written.removesuffix(tagging.key_end))
    if key is None:
        raise Broken("no name of a parameter")
    return key[1].strip(), key[2], (yield from _value(body, tagging))


def _ends(body: Body, tagging: Tagging) -> Reading[bool]:
    """Whether the end of the call comes without its tag."""
    found = yield from body.text.starts(*tagging.closings, *filter(None, (tagging.call,)))
    ends = not tagging.end or body.lenient
    return (ends and found is not None) or (body.lenient and not (yield from body.text.peek()))


def _value(body: Body, tagging: Tagging) -> Reading[str]:
    """Text of a value, whose closing tag is passed."""
    text, taken = body.text, list[str]()
    if tagging.cdata and (yield from text.took(_CDATA)):
        value = yield from text.until("]]>")
        yield from text.expect(tagging.closing)
        return value
    lines = bool(tagging.lines and (yield from text.took("\n")))
    if body.lenient:
        return _lenient(text, tagging).removesuffix("\n" if lines else "")
    following, tag = _following(tagging), tagging.closing
    while True:
        found = text.text.find(tag, text.at)
        end = found if found >= 0 else max(text.at, len(text.text) - len(tag) + 1)
        known = following.known(text, found + len(tag)) if found >= 0 else None
        taken.append(text.text[text.at : end])
        text.at = end
        if known and (value := _whole(text, taken, found + len(tag), lines=lines)) is not None:
            text.at += len(tag)
            return value
        if known is None:
            yield from text.more(tag[-1] if found < 0 else "")
        else:
            taken.append(tag)
            text.at += len(tag)


def _whole(text: Arriving, taken: list[str], after: int, *, lines: bool) -> str | None:
    """A value, if its closing tag, or what follows that, begins a line as the value did."""
    value = "".join(taken)
    if lines and value and not value.endswith("\n") and text.text[after : after + 1] != "\n":
        return None
    return value.removesuffix("\n") if lines else value


@lru_cache(maxsize=64)
def _any_tag(tagging: Tagging) -> re.Pattern[str]:
    ends = (tagging.closing, tagging.parameter, tagging.end, tagging.call, *tagging.closings)
    return re.compile("|".join(map(re.escape, filter(None, ends))))


def _lenient(text: Arriving, tagging: Tagging) -> str:
    """A value up to any tag, in an answer that is all there."""
    found = _any_tag(tagging).search(text.text, text.at)
    end = found.start() if found else len(text.text)
    value, text.at = text.text[text.at : end], end
    if text.text.startswith(tagging.closing, end):
        text.at += len(tagging.closing)
    return value


def glm_call(body: Body, tagging: Tagging, *separators: str) -> Reading[None]:
    """Read a call that is a name and pairs of keys and values; or JSON.

    Parameters
    ----------
    body : Body
    tagging : Tagging
    *separators : str
        One of them may stand between name and pairs.
    """
    text, there = body.text, _there(tagging)
    named = text.passed(_glm(tagging))
    if named is not None:
        yield from tagged_call(body, tagging, named[1])
    else:
        yield from text.spaces()
        name = yield from text.run(_GLM_NAME)
        yield from text.spaces()
        yield from text.took(*separators)
        if (yield from text.starts("```", "{")):
            body.give([(yield from named_arguments(text, name))])
            yield from text.spaces()
            yield from text.took("```")
            yield from text.spaces()
        else:
            yield from tagged_call(body, tagging, name.strip())
    if text.passed(there.closing) is None:
        yield from text.took(*tagging.closings)


@lru_cache(maxsize=64)
def _glm(tagging: Tagging) -> re.Pattern[str]:
    """A name before a parameter."""
    return re.compile(rf"\s*+({_GLM_NAME.pattern}+)\s*+(?={re.escape(tagging.parameter)})")


def tool_call(tagging: Tagging, functions: Tagging, *separators: str) -> Read:
    """Reader of what any of the formats with ``<tool_call>`` writes after that tag."""
    of_json, of_functions = json_calls(*tagging.closings), tagged_calls(functions)
    begun = re.compile(rf"\s*+(?:([{{\[])|{re.escape(functions.call)})")

    def read(body: Body) -> Reading[None]:
        text = body.text
        found = begun.match(text.text, text.at)
        mark = "" if found else (yield from text.spaces())
        if (found and found[1]) or mark in ("{", "["):
            yield from of_json(body)
        elif found or (mark == "<" and (yield from text.starts(functions.call))):
            yield from of_functions(body)
        else:
            yield from glm_call(body, tagging, *separators)

    return read


def function_call(tagging: Tagging, *, fallback: Sequence[str] = ()) -> Read:
    """Reader of a call after ``<function=``: a name, and JSON or tags."""

    def read(body: Body) -> Reading[None]:
        text = body.text
        header = _HEADER.fullmatch((yield from text.until(tagging.named)))
        if header is None:
            raise Broken("no name")
        if (yield from text.spaces()) == "{":
            body.give([(yield from named_arguments(text, header[1]))])
            yield from text.spaces()
            yield from text.took(tagging.end)
        else:
            yield from tagged_call(body, tagging, header[1].strip())
        yield from text.took(*fallback)

    return read


def nested_calls(token: str, closing: str) -> Read:
    """Reader of MiniMax M3's calls, whose arguments are elements in elements.

    Parameters
    ----------
    token : str
        Before each tag.
    closing : str
        Of what stands around calls, without the token.
    """

    def read(body: Body) -> Reading[None]:
        text = body.text
        while True:
            yield from text.spaces()
            tag = yield from text.took(f'{token}<invoke name="', token + closing)
            if tag is None or tag.endswith(closing):
                break
            name = yield from text.until('">')
            arguments, _ = yield from _element(body, token, "invoke", 0)
            given = ((key, value, body.offered.kinds(name, key)) for key, value in arguments)
            body.give([ToolCall(name, {key: _leaf(value, of) for key, value, of in given})])
        if not body.given:
            raise Broken("no call")

    return read


def _element(
    body: Body, token: str, key: str, depth: int
) -> Reading[tuple[list[tuple[str, object]], str]]:
    """Children of an element, and its text up to its own end, which is passed."""
    if depth > _MAX_DEPTH:
        raise Broken(f"elements nested deeper than {_MAX_DEPTH}")
    text, children, own = body.text, list[tuple[str, object]](), ""
    while True:
        own += yield from text.until(token)
        yield from text.expect("<")
        tag = yield from text.until(">")
        if tag == f"/{key}":
            return children, own
        inner, said = yield from _element(body, token, tag, depth + 1)
        children.append((tag, _joined(inner, said)))


def _joined(children: list[tuple[str, object]], said: str) -> object:
    """Value of an element: its text, a list of items, or an object."""
    if not children:
        return said
    if all(key == "item" for key, _ in children):
        return [_leaf(value) for _, value in children]
    return {key: _leaf(value) for key, value in children}


def _leaf(value: object, kinds: Kinds = _ANY) -> object:
    return typed(value, kinds) if isinstance(value, str) else value
