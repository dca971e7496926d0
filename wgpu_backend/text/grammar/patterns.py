"""Regular expressions of JSON schemas, in the syntax of the compiler."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection

# A class of a regular expression, and what one letter of it may be.
_CLASS = re.compile(r"\[(\^?)((?:[^\]\\]|\\.)*)\]", re.DOTALL)
_ATOM = re.compile(
    r"\\(?:u\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[pP]\{[^}]*\}|.)|.", re.DOTALL
)


def write_classes(pattern: str) -> str:
    """Write the classes of a JSON schema's regular expression in the syntax of Rust's `regex`.

    ECMA-262, which JSON Schema refers to, has neither classes in classes nor the operators `&&`,
    `--` and `~~`. There these are letters, `[^]` is any character, and `[]` none.
    """
    written, at = list[str](), 0
    while at < len(pattern):
        if pattern[at] == "\\":
            written.append(pattern[at : at + 2])
            at += 2
        elif pattern[at] == "[":
            found = _CLASS.match(pattern, at)
            if found is None:  # The compiler says what is wrong.
                return pattern
            written.append(_write_class(found[1], found[2]))
            at = found.end()
        else:
            written.append(pattern[at])
            at += 1
    return "".join(written)


def write_other_words(words: Collection[str]) -> str:
    """Write an expression of all texts except some words."""
    by_first: dict[str, list[str]] = {}
    for word in words:
        if word:
            by_first.setdefault(word[0], []).append(word[1:])
    ways = [re.escape(first) + write_other_words(rest) for first, rest in by_first.items()]
    firsts = "".join(rf"\u{{{ord(first):x}}}" for first in by_first)
    # Without the vertical tab, as `_loses_marks` explains.
    ways.append(rf"[^{firsts}\x0b][\s\S]*" if firsts else r"[\s\S]+")
    return f"(?:{'|'.join(ways)})" + ("" if "" in words else "?")


def _write_class(negation: str, inner: str) -> str:
    if not inner:
        return r"[\s\S]" if negation else r"[^\s\S]"
    atoms = _ATOM.findall(inner)
    # A hyphen between two atoms is a range; at an end, and after a range, it is a letter.
    written, at = list[str](), 0
    while at < len(atoms):
        is_range = atoms[at + 1 : at + 2] == ["-"] and at + 2 < len(atoms)
        written.append(
            "-".join(map(_write_atom, (atoms[at], atoms[at + 2]) if is_range else (atoms[at],)))
        )
        at += 3 if is_range else 1
    made = f"[{negation}{''.join(written)}]"
    return rf"[{made}&&[^\x0b]]" if _loses_marks(negation, inner) else made


def _loses_marks(negation: str, inner: str) -> bool:
    """Return whether a class has control characters but not both marks that JSON escapes.

    The compiler takes a quotation mark and a backslash for any class with all control characters
    but a line break, such as `[^"]`. Without one of these it does not; the vertical tab is rare.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of brackets in classes
        try:
            one = re.compile(f"[{negation}{inner}]")
        except re.error:  # an escape that Python does not have
            return False
    marks = all(map(one.match, '"\\'))
    return not marks and all(one.match(chr(code)) for code in range(32) if code != ord("\n"))


def _write_atom(atom: str) -> str:
    return "\\" + atom if atom in "[]&~-^" else atom
