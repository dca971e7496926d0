"""CONTRIBUTING.md shows code that is in the tree, and names only what is there."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import wgpu_backend as wb
from tests.test_docs import of_lost_family

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def excerpts() -> Iterator[tuple[str, list[str]]]:
    """File and lines of each excerpt; a block may have several, each under the name of its file."""
    for block in BLOCKS:
        name, lines = "", []
        for line in block.splitlines():
            if line.startswith("# ") and (ROOT / line[2:]).is_file():
                if name:
                    yield name, lines
                name, lines = line[2:], []
            elif line.strip():
                lines.append(line)
        if name:
            yield name, lines


def in_order(lines: list[str], text: str) -> str | None:
    """The first of these lines that does not follow the ones before it, or None."""
    rest = iter(text.splitlines())
    return next((line for line in lines if line not in rest), None)


def test_every_block_says_where_it_is_from():
    told = [b for b in BLOCKS if b.startswith("# not like this")]
    cut = [b for b in BLOCKS if (ROOT / b.splitlines()[0][2:]).is_file()]
    assert len(told) + len(cut) == len(BLOCKS)
    assert len(told) == 2


@pytest.mark.parametrize(("name", "lines"), list(excerpts()))
def test_excerpts_are_cut_from_their_files(name: str, lines: list[str]):
    missing = in_order(lines, (ROOT / name).read_text(encoding="utf-8"))
    assert missing is None, f"{name} has no line {missing!r} after the ones before it"


def test_recipes_show_an_op_and_a_model_from_files_that_run():
    shown = {name for name, _ in excerpts()}
    assert {"examples/custom_op.py", "examples/custom_model.py"} <= shown


def test_files_that_are_named_exist():
    named = set(re.findall(r"`([\w./]+/[\w./]*)`", TEXT)) | set(re.findall(r"\]\(([^)]+)\)", TEXT))
    named = {name for name in named if "NAME" not in name}
    if not (ROOT.parent / "shared").exists():  # it lies beside the checkout, and is not everybody's
        named = {name for name in named if not name.startswith("../")}
    assert len(named) > 15
    places = {n: (ROOT / n, ROOT / "shaders" / f"{n}.wgsl") for n in sorted(named)}
    missing = [name for name, paths in places.items() if not any(p.exists() for p in paths)]
    assert [name for name in missing if not of_lost_family(name)] == []


PYTHON = [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "picture").glob("*.py")]


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.name)
def test_examples_import_nothing_from_inside_the_package(path: Path):
    assert inner_imports(path.read_text(encoding="utf-8")) == []


def test_recipes_import_nothing_from_inside_the_package():
    assert [inner_imports(block) for block in BLOCKS] == [[]] * len(BLOCKS)
    assert not re.search(r"\b(import|from) +wgpu_backend\.", TEXT)


# Packages of their own beside `wgpu_backend` itself.
PUBLIC = ("wgpu_backend.array", "wgpu_backend.array.nn", "wgpu_backend.images")


def inner_imports(text: str) -> list[str]:
    """What a text imports from below the package's public faces."""
    return [name for name in all_imports(text) if not is_public(name)]


def is_public(name: str) -> bool:
    """Whether a name is a public package, or one that such a package lists."""
    package, _, alias = name.rpartition(".")
    return name in PUBLIC or (package in PUBLIC and alias in import_module(package).__all__)


def test_what_lies_deeper_than_a_public_package_is_inside():
    text = "from wgpu_backend.images.requests import Step\nfrom wgpu_backend.array import session"
    assert len(inner_imports(text)) == 2
    assert inner_imports("from wgpu_backend.images import Step, load") == []


def all_imports(text: str) -> list[str]:
    """What a text imports from below the package."""
    found: list[str] = []
    for node in ast.walk(ast.parse(ragged(text))):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("wgpu_backend.")]
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wgpu_backend"):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def ragged(text: str) -> str:
    """Only the lines of imports where an excerpt is no whole program."""
    try:
        ast.parse(text)
    except SyntaxError:
        lines = [line.strip() for line in text.splitlines()]
        return "\n".join(line for line in lines if re.match(r"(import|from) [\w.]+", line))
    return text


@pytest.mark.parametrize("text", [TEXT, *(p.read_text(encoding="utf-8") for p in PYTHON)])
def test_every_name_that_is_shown_is_public(text: str):
    for chain in set(re.findall(r"\bwb((?:\.\w+)+)", text)):
        found = wb
        for name in chain[1:].split("."):
            assert found is not wb or name in wb.__all__, f"wb{chain}"
            found = getattr(found, name)


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"\bmake ([a-z-]+)", TEXT))
    there = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets <= there
    assert {"test", "check"} <= targets


def test_recipes_are_short():
    for recipe in re.findall(r"^## Add .*?(?=^## )", TEXT, re.MULTILINE | re.DOTALL):
        for block in re.findall(r"^```python\n(.*?)^```", recipe, re.MULTILINE | re.DOTALL):
            assert sum(bool(line.strip()) for line in block.splitlines()) <= 10
        steps = re.sub(r"^```.*?^```", "", recipe, flags=re.MULTILINE | re.DOTALL)
        assert len(re.findall(r"^\d\. ", steps, re.MULTILINE)) <= 5
