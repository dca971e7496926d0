"""What `import wgpu_backend` gives, and what it costs."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import wgpu_backend

ROOT = Path(__file__).parent.parent


def test_all_is_what_is_there():
    assert wgpu_backend.__all__ == sorted(set(wgpu_backend.__all__), key=ruffs_order)
    public = {name for name in dir(wgpu_backend) if not name.startswith("__")}
    assert public == set(wgpu_backend.__all__)


def ruffs_order(name: str) -> tuple[int, list[str | int]]:
    """Constants, classes, then the rest, with numbers as numbers."""
    rank = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return rank, [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)]


@pytest.mark.parametrize("name", wgpu_backend.__all__)
def test_every_name_leads_somewhere(name: str):
    found = getattr(wgpu_backend, name)
    if inspect.ismodule(found):
        assert found is sys.modules[f"wgpu_backend.{name}"]
    elif isinstance(found, wgpu_backend.DType):
        assert found is wgpu_backend.dtype(name.rstrip("_"))
    elif name not in ("Array", "FLOATS"):
        assert found.__module__.startswith("wgpu_backend.")
        assert found.__doc__


def test_what_type_checkers_see_is_what_is_there():
    tree = ast.parse(Path(wgpu_backend.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            seen[alias.asname or alias.name] = importlib.import_module(node.module), alias.name
    assert set(seen) == set(wgpu_backend.__all__)
    for name, (home, inner) in seen.items():
        assert getattr(wgpu_backend, name) is getattr(home, inner), name


def test_every_exception_and_warning_has_a_public_name():
    kinds = vars(wgpu_backend.errors).items()
    errors = {n for n, c in kinds if inspect.isclass(c) and issubclass(c, Exception)}
    sources = [p.read_text(encoding="utf-8") for p in (ROOT / "wgpu_backend").rglob("*.py")]
    warnings = set(re.findall(r"^class (\w+)\(UserWarning\)", "".join(sources), re.MULTILINE))
    assert errors | warnings <= set(wgpu_backend.__all__)
    assert len(errors) > 15
    assert len(warnings) > 1


def test_a_context_needs_no_model_and_closes_its_device():
    with wgpu_backend.context("cpu") as ctx:
        assert ctx.device.id == "cpu"
        x = ctx.from_numpy([1.0, 2.0], wgpu_backend.f16)
        assert (x + 1).numpy().tolist() == [2, 3]
    with pytest.raises(wgpu_backend.ContextError, match="closed"):
        ctx.from_numpy([1.0])


def test_a_context_on_no_such_device_is_an_error_with_those_there_are():
    with pytest.raises(wgpu_backend.DeviceError, match=r"'toaster': no such device, there are .*"):
        wgpu_backend.context("toaster")


@pytest.mark.gpu
def test_a_context_takes_the_best_device_and_gives_it_back():
    if wgpu_backend.Devices()[0].api == "NumPy":
        pytest.skip("needs an adapter")
    with wgpu_backend.context() as ctx:
        assert ctx.device.id == wgpu_backend.Devices()[0].id
        assert (ctx.from_numpy([1.0, 2.0]) * 2).numpy().tolist() == [2, 4]
        device = ctx.executor.device
    with pytest.raises(wgpu_backend.DeviceError, match="closed"):
        device.buffer(16, purpose="activations", label="late")
    ctx.close()


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


@pytest.mark.parametrize("old", sorted(wgpu_backend._MOVED))
def test_a_moved_module_is_found_under_its_old_name(old: str):
    for name in [n for n in sys.modules if f"{n}.".startswith(f"wgpu_backend.{old}.")]:
        del sys.modules[name]
    with pytest.warns(DeprecationWarning, match=f"^wgpu_backend.{old} is now wgpu_backend"):
        found = importlib.import_module(f"wgpu_backend.{old}")
    assert found is importlib.import_module(f"wgpu_backend.{wgpu_backend._MOVED[old]}")


def test_a_module_of_a_moved_package_is_found_too():
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        found = importlib.import_module("wgpu_backend.kvcache.paged")
    assert found.PagedCache is wgpu_backend.PagedCache


def test_no_module_takes_an_old_name():
    for old in wgpu_backend._MOVED:
        path = ROOT / "wgpu_backend" / old.replace(".", "/")
        assert not path.is_dir()
        assert not path.with_suffix(".py").exists()
