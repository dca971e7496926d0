"""Splitting of long switches, because LLVM's rasteriser nests the branches of their cases.

It keeps 80 of them at most, and overruns its own stack with more, which ends the process. Pieces
stand one after the other::

    switch x { case 0: {…} … case 99: {…} default: {D} }

    { let s = x; switch s { case 0: {…} … default {} }  switch s { case 64: {…} … default {} }
      switch s { case 0, … 99: {} default: {D} } }

Exactly one of the bodies runs, as before, and lines stay where they are. Where every case ends with
`return`, which would make a branch of all code after it, they put the result into a variable, and
one `return` follows the last piece.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wgpu_backend.device.wgsl.nesting import blank_comments

# Cases of a piece. The blocks around it may be as deep again: llvmpipe has a stack for 80.
PIECE = 32
_NAME = "split_switch"
_SWITCH = re.compile(r"\bswitch\b")
_RETURN = re.compile(r"\breturn\b(?P<value>[^;{}]*);(?P<rest>\s*)\Z")
_FUNCTION = re.compile(r"\bfn\s+\w+\s*\([^{]*?\)\s*(?:->(?P<type>[^{]+))?\{")


@dataclass(frozen=True, slots=True)
class _Clause:
    """A case: its labels, and the positions of it and its body."""

    labels: tuple[str, ...]
    start: int
    body: int
    end: int


def split_switches(text: str) -> str:
    """Split long switches into equivalent ones of few cases.

    Parameters
    ----------
    text : str
        That may be wrong: what cannot be read as a switch stays as it is, for the compiler to say.
    """
    plain = blank_comments(text)
    changed = False
    # Inner switches begin later. They are split first, while the places of outer ones still hold.
    for found in reversed(list(_SWITCH.finditer(plain))):
        open_brace = _at_depth_0(plain, found.end(), "{")
        clauses = _clauses(plain, open_brace)
        if clauses is not None and len(clauses) > PIECE:
            name = f"{_NAME}_{found.start()}"
            plain = _split(plain, found.start(), open_brace, clauses, name)
            changed = True
    return plain if changed else text


def _split(text: str, start: int, open_brace: int, clauses: list[_Clause], name: str) -> str:
    """Split one switch."""
    selector, close = text[start + len("switch") : open_brace], _find_end(text, open_brace)
    last = next(c for c in clauses if _is_default(c))
    bodies = [text[c.body + 1 : c.end - 1] for c in clauses]
    declared, returned = "", ""
    if all(_RETURN.search(b) and len(re.findall(r"\breturn\b", b)) == 1 for b in bodies):
        result, kind = f"{name}_result", _find_result_type(text[:start])
        bodies = [_RETURN.sub(_make_assignment(result), body) for body in bodies]
        declared = f"var {result}: {kind}; " if kind else ""
        returned = f" return {result};" if kind else " return;"
    pieces = [f"{{ {declared}let {name} = {selector}; "]
    at = open_brace + 1
    for index, (clause, body) in enumerate(zip(clauses, bodies, strict=True)):
        if index % PIECE == 0:
            pieces.append(f"{'default {} } ' if index else ''}switch {name} {{")
        # The text between clauses has their line ends; the default moves to the end of all.
        whole = f"{text[clause.start : clause.body]}{{{body}}}"
        pieces += [text[at : clause.start], "\n" * whole.count("\n") if clause is last else whole]
        at = clause.end
    pieces.append(f"{text[at:close]}default {{}} }} ")
    labels = [label for c in clauses if c is not last for label in c.labels]
    handled = f"case {', '.join(labels)}: {{}} " if labels else ""
    own = ", ".join([*(label for label in last.labels if label != "default"), "default"])
    default = bodies[clauses.index(last)].replace("\n", " ")
    pieces.append(f"switch {name} {{ {handled}case {own}: {{{default}}} }}{returned} }}")
    return text[:start] + "".join(pieces) + text[close + 1 :]


def _make_assignment(variable: str) -> Callable[[re.Match[str]], str]:
    """Return the replacement of a `return`: an assignment, or nothing if it has no value."""

    def assignment(found: re.Match[str]) -> str:
        value = found["value"]
        return f"{variable} = {value};{found['rest']}" if value.strip() else found["rest"]

    return assignment


def _find_result_type(before: str) -> str:
    """Return the result type of the function in which the text ends, or an empty text."""
    functions = list(_FUNCTION.finditer(before))
    return (functions[-1]["type"] or "").strip() if functions else ""


def _is_default(clause: _Clause) -> bool:
    return "default" in clause.labels


def _clauses(text: str, open_brace: int) -> list[_Clause] | None:
    """Return the cases of a switch; None for other text, or unless it has exactly one default."""
    if open_brace < 0 or (end := _find_end(text, open_brace)) < 0:
        return None
    clauses = list(_read(text, open_brace + 1, end))
    return clauses if sum(_is_default(c) for c in clauses) == 1 else None


def _read(text: str, at: int, end: int) -> Iterator[_Clause]:
    while True:
        start = at + len(text[at:end]) - len(text[at:end].lstrip())
        body = _at_depth_0(text, start, "{")
        if start >= end or not 0 <= body < end or (stop := _find_end(text, body)) < 0:
            return
        head = text[start:body].strip().removesuffix(":").strip()
        yield _Clause(tuple(_split_labels(head.removeprefix("case"))), start, body, stop + 1)
        at = stop + 1


def _split_labels(labels: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    at = 0
    while at <= len(labels):
        comma = _at_depth_0(labels, at, ",")
        stop = len(labels) if comma < 0 else comma
        if label := labels[at:stop].strip():
            yield label
        at = stop + 1


def _at_depth_0(text: str, start: int, wanted: str) -> int:
    """Find a mark outside parentheses; -1 if there is none."""
    depth = 0
    for at in range(start, len(text)):
        mark = text[at]
        if mark == wanted and depth == 0:
            return at
        depth += (mark in "([") - (mark in ")]")
    return -1


def _find_end(text: str, open_brace: int) -> int:
    """Find the brace that closes another; -1 if there is none."""
    depth = 0
    for found in re.compile(r"[{}]").finditer(text, open_brace):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.start()
    return -1
