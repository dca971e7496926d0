"""A family can be taken out of a checkout, and the table stays one that can be read."""

import ast

import pytest

from tests.without_family import FOLDERS, ROOT, TABLE, delete, main, without_rows
from wgpu_backend.kernels import FAMILIES

NAMES = [family.name for family in FAMILIES]


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_family_go_and_no_others(name):
    before = (ROOT / TABLE).read_text(encoding="utf-8")
    after = without_rows(before, name)
    ast.parse(after)
    gone = set(before.splitlines()) - set(after.splitlines())
    assert gone == {
        f"from wgpu_backend.kernels.{name} import FAMILY as {name.upper()}",
        f"    {name.upper()},",
    }


def test_folders_of_a_family_go(tmp_path):
    for folder in FOLDERS:
        for name in ("one", "other"):
            (tmp_path / folder / name).mkdir(parents=True)
    imported = "from wgpu_backend.kernels.one import FAMILY as ONE\n"
    (tmp_path / TABLE).write_text(f"{imported}\nFAMILIES = (\n    ONE,\n    TWO,\n)\n")
    delete(tmp_path, "one")
    assert (tmp_path / TABLE).read_text() == "\nFAMILIES = (\n    TWO,\n)\n"
    assert not any((tmp_path / folder / "one").exists() for folder in FOLDERS)
    assert all((tmp_path / folder / "other").exists() for folder in FOLDERS)


def test_a_family_that_is_none_is_refused(capsys):
    assert main(["abacus"]) == 2
    assert "table.py: there is no family 'abacus'" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_a_family_has_its_folders_under_its_name(name):
    assert all((ROOT / folder / name).is_dir() for folder in FOLDERS)
