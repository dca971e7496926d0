"""Files that the documents name exist, and the glossary has each term once."""

import re
from pathlib import Path

import pytest

from tests.test_floors import FLOORS
from wgpu_backend.kernels.table import FAMILIES

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "docs/engine.md",
    "docs/rasterisers.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/design").glob("*.md")),
]
FILES = {
    path.relative_to(ROOT).as_posix()
    for top in (
        "wgpu_backend",
        "shaders",
        "models",
        "tests",
        "benchmarks",
        "examples",
        "docs",
        ".ci",
    )
    for path in (ROOT / top).rglob("*.*")
}
# They stand for any file of a kind.
ANY = re.compile(r"NAME|FILE|path/to")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_a_document_names_exist(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"[`(]([\w./-]+\.(?:py|wgsl|md|txt|json))\b", text))
    homes = ROOT, (ROOT / document).parent
    missing = [n for n in named if not any((home / n).exists() for home in homes)]
    missing = [n for n in missing if not ANY.search(n)]
    # What lies beside the checkout is not everybody's.
    missing = [n for n in missing if not n.startswith("../") or (ROOT.parent / "shared").exists()]
    missing = [n for n in missing if not any(f.endswith(f"/{n}") for f in FILES)]
    # Families may go, see `tests.without_family`; what is written of them stays.
    missing = [n for n in missing if not of_lost_family(n)]
    assert missing == [] or lost_family(document)


def test_the_way_from_a_method_to_a_kernel_takes_six_files():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.split("WGSL, in order:")[1].split("\n#")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", table, re.MULTILINE)
    assert len(rows) == 6
    for file, told in rows:
        if not of_lost_family(file):
            source = (ROOT / file).read_text(encoding="utf-8")
            words = [word for word in re.findall(r"`([^`]+)`", told) if "/" not in word]
            assert [word for word in words if word not in source] == [], file


def of_lost_family(name):
    """Whether a file is of a family that this checkout lacks."""
    found = re.match(r"(?:wgpu_backend/|shaders/|tests/)?kernels/(\w+)/", name)
    return bool(found) and found[1] not in {family.name for family in FAMILIES}


def lost_family(document):
    """Whether a document is about a family that this checkout lacks."""
    return document == "docs/rasterisers.md" and of_lost_family("kernels/rasteriser/")


def test_every_room_has_one_row_in_the_map():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.split("## Rooms")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = re.findall(r"`([\w.]+)/?`", " ".join(rows))
    order = [unit for floor in FLOORS for unit in floor if not unit.startswith("__")]
    assert [name.removesuffix(".py") for name in named] == order


def test_architecture_is_read_in_one_sitting():
    words = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split()
    assert len(words) <= 1500


def test_a_term_has_one_line_in_the_glossary():
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    terms = [term for row in rows for term in row.split(", ")]
    assert len(terms) > 40
    assert sorted(terms) == sorted(set(terms))


def test_every_variable_of_the_environment_is_on_one_page() -> None:
    cli = "".join(path.read_text("utf-8") for path in (ROOT / "wgpu_backend/cli").rglob("*.py"))
    named = set(re.findall(r'"((?:OLLAMA|WGPU_BACKEND|XDG)_[A-Z_]+|COLUMNS)"', cli))
    page = (ROOT / "docs/environment.md").read_text("utf-8")
    rows = re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(named)
    read = re.findall(r"(?:environ\.get|getenv|_whole)\(\s*\"(\w+)\"|environ\[\"(\w+)\"\]", cli)
    assert {name for pair in read for name in pair if name} <= named
