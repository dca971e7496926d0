"""The contents of a wheel; an installed package finds its shaders and models in any folder."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

WHERE_THE_PARTS_ARE = """
import importlib, importlib.resources, pathlib, sys
import wgpu_backend
home = pathlib.Path(sys.argv[1]).resolve()
shaders = importlib.resources.files("wgpu_backend.shaders")
llama = importlib.import_module("wgpu_backend.models.llama")
bundled = importlib.resources.files("wgpu_backend.bundled")
texts = [item.read_text() for item in shaders.iterdir() if item.name.endswith(".wgsl")]
assert texts and all(texts), "no shader found"
for file in (wgpu_backend.__file__, llama.__file__, next(bundled.iterdir())):
    assert home in pathlib.Path(str(file)).resolve().parents, f"{file} is not in {home}"
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    [path] = folder.glob("wgpu_backend-*.whl")
    return path


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *words], check=True)


def find_the_parts(home: Path) -> subprocess.CompletedProcess[str]:
    """Look from a process whose path begins with `home`, before any editable install."""
    code = f"import sys; sys.path.insert(0, sys.argv[1])\n{WHERE_THE_PARTS_ARE}"
    command = [sys.executable, "-P", "-c", code, str(home)]
    return subprocess.run(command, cwd=home.parent, capture_output=True, text=True, check=False)


def in_checkout(pattern: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}


@pytest.mark.slow
def test_the_wheel_holds_every_shader_and_model(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    beside = in_checkout("shaders/**/*.wgsl") | in_checkout("models/**/*.py")
    expected = {f"wgpu_backend/{name}" for name in beside} | in_checkout("wgpu_backend/**/*.py")
    expected |= in_checkout("wgpu_backend/server/page/*")
    assert expected - names == set()
    assert any(name.endswith(".wgsl") for name in beside)
    assert "wgpu_backend/models/llama.py" in names


@pytest.mark.slow
def test_the_wheel_holds_the_bundled_model_and_nothing_from_outside_the_package(
    wheel: Path,
) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith(".gguf")]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"wgpu_backend"}
    assert "wgpu_backend/py.typed" in names


@pytest.mark.slow
def test_shaders_and_models_are_found_in_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip("install", "--no-deps", "--target", str(site), str(wheel))
    done = find_the_parts(site)
    assert done.returncode == 0, done.stderr


def test_shaders_and_models_are_found_in_a_bare_checkout() -> None:
    done = find_the_parts(ROOT)
    assert done.returncode == 0, done.stderr
