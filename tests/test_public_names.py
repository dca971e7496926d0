"""What `import wgpu_backend` gives, and what it costs."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wgpu_backend

ROOT = Path(__file__).parent.parent


def test_all_is_what_is_there():
    assert sorted(wgpu_backend.__all__) == sorted(set(wgpu_backend.__all__))
    public = {name for name in dir(wgpu_backend) if not name.startswith("_")}
    modules = {name for name in public if f"wgpu_backend.{name}" in sys.modules}
    typing = {"TYPE_CHECKING", "Any", "annotations"}
    assert public - modules - typing == set(wgpu_backend.__all__) - modules


@pytest.mark.parametrize("name", wgpu_backend.__all__)
def test_every_name_leads_somewhere(name: str):
    found = getattr(wgpu_backend, name)
    home = importlib.import_module(found.__module__)
    assert getattr(home, name) is found


def test_what_type_checkers_see_is_what_is_there():
    text = Path(wgpu_backend.__file__).read_text(encoding="utf-8")
    block = text[text.index("if TYPE_CHECKING:") : text.index("__path__")]
    imports = re.findall(r"import \(([^)]*)\)|import ([\w, ]+)$", block, re.MULTILINE)
    names = {n.strip() for pair in imports for n in "".join(pair).split(",") if n.strip()}
    assert names == set(wgpu_backend.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'wgpu_backend' has no attribute 'lood'"):
        wgpu_backend.lood  # noqa: B018


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True
    )
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_heavy():
    loaded = modules_after("import wgpu_backend")
    assert "wgpu_backend" in loaded
    assert loaded.isdisjoint({"numpy", "wgpu", "gguf", "tokenizers", "jinja2"})


def test_an_error_class_needs_no_device():
    loaded = modules_after("from wgpu_backend import OutOfMemory")
    assert loaded.isdisjoint({"numpy", "wgpu"})


def test_a_backend_on_numpy_imports_no_wgpu():
    story = ROOT / "wgpu_backend" / "bundled" / "story.gguf"
    loaded = modules_after(
        "from wgpu_backend import new_backend\n"
        f"with new_backend({str(story)!r}, name='cpu') as backend: backend.new_context().zeros(2)"
    )
    assert "wgpu_backend.ml.numpy_executor" in loaded
    assert "wgpu" not in loaded


def test_types_ship():
    assert (Path(wgpu_backend.__file__).parent / "py.typed").is_file()
