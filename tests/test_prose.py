"""Prose and names stay plain: limits on counts of phrases that read badly.

A limit is the figure of the day it was written down. Whoever lowers a figure lowers its limit in
the same commit. The rules are in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
CODE = [p for top in ("wgpu_backend", "models") for p in sorted((ROOT / top).rglob("*.py"))]
DOCUMENTS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))

Function = ast.FunctionDef | ast.AsyncFunctionDef

# A summary that is a clause and no sentence: "What a pass is given", "How rows lie".
CLAUSE = re.compile(r"(What|How|Whether|Where|Who|Which|That|Those|Of what|As)\b")
# The field says after, next to, related, reports, ignores.
ODD_WORD = re.compile(
    r"\b(behind|beside|in front of|kin|likewise|told|tells|minds?|nobody|somebody)\b", re.IGNORECASE
)
# A function is named by a verb, not by what it leaves.
PARTICIPLE = re.compile(
    r"_*(?!is_|has_|need|feed|embed|speed|seed|index|read|thread)"
    r"([a-z]+ed|made|found|given|shown|told|held|kept|known|taken|said|begun|drawn|written|left|sent)"
)
# Names that only this project had, for which the field has a word.
INVENTED = re.compile(r"\b(Wanted|Manner|Wish|Given|Said|Serving|Neighbour|[Tt]wins?|kin)\b")

# In percent of summaries and functions, per 10,000 words, in percent of lines and entries.
LIMITS = {
    "summaries that begin with What, How, Whether, Where, Which": 0.1,
    "odd words in docstrings": 0.1,
    "functions named by a participle": 0.8,
    "functions named X_of": 0.2,
    "parameter entries without a description": 5.5,
    "invented names": 51.0,
    "commas in a sentence of the documents": 0.8,
    "'what' in the documents": 4.5,
}
LEAST_COMMENTS = 3.0  # percent of the lines of code


class Written(NamedTuple):
    """What the checks need of a module: trees of all would keep the garbage collector busy."""

    text: str
    docstrings: list[str]
    functions: list[str]


@cache
def modules() -> list[Written]:
    return [read_module(path.read_text(encoding="utf-8")) for path in CODE]


def read_module(text: str) -> Written:
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    names = [node.name for node in nodes if isinstance(node, Function)]
    found = [ast.get_docstring(node) for node in nodes]
    return Written(text, [each for each in found if each], names)


def docstrings() -> list[str]:
    return [each for module in modules() for each in module.docstrings]


def function_names() -> list[str]:
    names = [each for module in modules() for each in module.functions]
    return [name for name in names if not name.startswith("__")]


def entries(docstring: str) -> list[bool]:
    """Parameter entries ``name : type``, and for each whether a description stands below it."""
    lines = [*docstring.splitlines(), ""]
    heads = [n for n, line in enumerate(lines) if re.fullmatch(r"\w[\w, *]* : [^\n]+", line)]
    return [lines[n + 1].startswith("    ") for n in heads]


def sentences() -> list[str]:
    """Sentences of the documents, without code, tables and headings."""
    found: list[str] = []
    for path in DOCUMENTS:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        prose = "\n".join(line for line in text.splitlines() if not line.startswith(("|", "#")))
        found += [s for s in re.split(r"(?<=[.!?:])\s+", prose) if len(s.split()) > 3]
    return found


def share(found: int, whole: int, of: int = 100) -> float:
    return of * found / whole


@cache
def figures() -> dict[str, float]:
    texts, names, prose = docstrings(), function_names(), sentences()
    words = sum(len(text.split()) for text in texts)
    described = [one for text in texts for one in entries(text)]
    prose_words = sum(len(text.split()) for text in prose)
    return {
        "summaries that begin with What, How, Whether, Where, Which": share(
            sum(bool(CLAUSE.match(text)) for text in texts), len(texts)
        ),
        "odd words in docstrings": share(
            sum(len(ODD_WORD.findall(text)) for text in texts), words, 10_000
        ),
        "functions named by a participle": share(
            sum(bool(PARTICIPLE.fullmatch(name)) for name in names), len(names)
        ),
        "functions named X_of": share(
            sum(bool(re.search(r"_of(_|$)", name)) for name in names), len(names)
        ),
        "parameter entries without a description": share(
            len(described) - sum(described), len(described)
        ),
        "invented names": float(sum(len(INVENTED.findall(module.text)) for module in modules())),
        "commas in a sentence of the documents": sum(s.count(",") for s in prose) / len(prose),
        "'what' in the documents": share(
            sum(len(re.findall(r"\bwhat\b", s, re.IGNORECASE)) for s in prose), prose_words, 10_000
        ),
    }


@pytest.mark.parametrize("figure", LIMITS)
def test_a_figure_only_falls(figure: str) -> None:
    assert round(figures()[figure], 1) <= LIMITS[figure]


def test_comments_say_why() -> None:
    texts = [module.text for module in modules()]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    comments = sum(line.startswith("#") for line in lines)
    assert round(share(comments, len(lines)), 1) >= LEAST_COMMENTS


def test_the_package_has_few_rooms() -> None:
    kept = {"__pycache__", "py.typed", "bundled"}
    entries = [e.name for e in (ROOT / "wgpu_backend").iterdir() if e.name not in kept]
    assert len(entries) <= 19


def test_these_checks_find_what_they_look_for() -> None:
    assert CLAUSE.match("What a pass is given.")
    assert not CLAUSE.match("Return what a pass needs.")
    assert ODD_WORD.findall("rows behind a norm, and beside it") == ["behind", "beside"]
    assert all(map(PARTICIPLE.fullmatch, ("joined", "_checked", "made")))
    assert not any(map(PARTICIPLE.fullmatch, ("join", "is_made", "_embed", "_thread", "seed")))
    assert entries("Sum.\n\nx : int\ny : int\n    The number.\n") == [False, True]
