"""Examples with a window: what they show, with a display and without one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import wgpu_backend
from tests.implementations import by_compiler
from tests.patience import PATIENCE
from wgpu_backend import Context
from wgpu_backend.engine.runner import Head, Work
from wgpu_backend.ops.op import REGISTRY
from wgpu_backend.testing import forget

pytest.importorskip("rendercanvas", reason="needs the extra [examples]: rendercanvas and glfw")

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SHADERS = EXAMPLES / "playground"
# Size of the picture, and the fewest colours that are more than noise around a blank one.
WINDOWS = {
    "attention_map": ((704, 1024), 100),
    "activations": ((800, 992), 100),
    "playground": ((768, 768), 50),
    "imagine_window": ((536, 792), 50),
}
pytestmark = pytest.mark.usefixtures("full")


def run(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(
        words,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done


def picture(path: Path) -> np.ndarray:
    """(rows, columns, 3) of a PNG file whose lines are not filtered."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    columns, rows = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT") + 4
    [size] = struct.unpack(">I", data[start - 8 : start - 4])
    lines = np.frombuffer(zlib.decompress(data[start : start + size]), "u1").reshape(rows, -1)
    return lines[:, 1:].reshape(rows, columns, 3)


def colours(image: np.ndarray) -> int:
    return len(np.unique(image.reshape(-1, 3), axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
def test_a_picture_is_made_without_a_display(tmp_path: Path, name: str):
    file = tmp_path / "picture.png"
    done = run(name, "--offscreen", "--frames", "4", "--screenshot", str(file), DISPLAY="")
    assert done.stderr == ""
    assert done.stdout.strip()
    size, least = WINDOWS[name]
    image = picture(file)
    assert image.shape == (*size, 3)
    assert colours(image) >= least


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have a screen, always")
def test_where_there_is_no_display_a_line_says_what_needs_none():
    pytest.importorskip("glfw", reason="needs the extra [examples]: glfw")
    words = [sys.executable, str(EXAMPLES / "playground.py"), "--frames", "1"]
    bare = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE, check=False, env=bare
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("no window: ")
    assert line.endswith("; --offscreen needs none")


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_open_with_what_one_sees(name: str):
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert f"$ python examples/{name}.py" in text.split('"""')[1]


@dataclass(frozen=True, slots=True)
class Display:
    """An X server that draws into a file."""

    name: str
    memory: Path

    def screen(self) -> np.ndarray:
        """What is on the screen: (rows, columns, 3)."""
        data = self.memory.read_bytes()
        header = struct.unpack(">25I", data[:100])
        columns, rows, line, colormap = header[4], header[5], header[12], header[19]
        start = header[0] + 12 * colormap
        pixels = np.frombuffer(data, "u1", rows * line, start).reshape(rows, line)
        return pixels[:, : 4 * columns].reshape(rows, columns, 4)[..., 2::-1]


@pytest.fixture
def display(tmp_path: Path) -> Iterator[Display]:
    pytest.importorskip("glfw", reason="needs the extra [examples]: glfw")
    if shutil.which("Xvfb") is None:
        pytest.skip("needs Xvfb, for example apt install xvfb")
    words = ["Xvfb", "-displayfd", "1", "-screen", "0", "1100x900x24", "-fbdir", str(tmp_path)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="ascii"
    ) as server:
        assert server.stdout is not None
        try:
            number = server.stdout.readline().strip()
            if not number:
                pytest.skip("Xvfb does not start here")
            yield Display(f":{number}", tmp_path / "Xvfb_screen0")
        finally:
            server.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_shows_the_picture_and_closes_by_itself(
    tmp_path: Path, display: Display, name: str
):
    file = tmp_path / "picture.png"
    words = [sys.executable, str(EXAMPLES / f"{name}.py"), "--frames", "4"]
    environment = {**os.environ, "DISPLAY": display.name}
    environment.pop("WAYLAND_DISPLAY", None)
    seen = display.screen()
    with subprocess.Popen(
        [*words, "--screenshot", str(file)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            now = display.screen()
            seen = now if colours(now[::8, ::8]) > 3 else seen
            time.sleep(0.02)
        process.kill()
        assert process.stderr is not None
        errors = process.stderr.read()
    if "surface" in errors.lower():
        pytest.skip(f"the driver cannot draw into a window: {errors.strip().splitlines()[-1]}")
    assert process.returncode == 0, errors
    wanted = picture(file)
    shown = seen[: wanted.shape[0], : wanted.shape[1]]
    # The screen was looked at every few hundredths of a second, so it may lag by a picture.
    assert np.abs(shown.astype(int) - wanted).mean() < 20
    assert colours(shown) >= WINDOWS[name][1]


@pytest.fixture(scope="module")
def examples() -> Iterator[dict[str, ModuleType]]:
    """The examples as modules."""
    sys.path.insert(0, str(EXAMPLES))
    found: dict[str, ModuleType] = {}
    for name in WINDOWS:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        found[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[name])
    yield found
    sys.path.remove(str(EXAMPLES))


@pytest.mark.parametrize("shader", ["life", "mandelbrot", "reaction"])
def test_every_shader_of_the_playground_moves(full, examples, shader: str):
    graph = examples["playground"].graph_of(SHADERS / f"{shader}.wgsl", 96, 8)
    pixels = np.zeros((96, 96, 8), "f4")
    try:
        with Context(full) as context:
            recorded = graph(context)
            for frame in range(12):
                before, clock = pixels, np.array([8 * frame], "u4")
                [pixels] = recorded.run({"pixels": pixels, "clock": clock}).wait()
            recorded.close()
    finally:
        forget(REGISTRY["paint"])
    assert np.isfinite(pixels).all()
    assert colours(np.clip(pixels[..., :3] * 255, 0, 255).astype("u1")) > 10
    assert np.abs(pixels - before)[..., :3].mean() > 1e-4


@pytest.mark.slow
def test_attention_weights_are_causal_add_up_to_one_and_stay_as_they_were(examples):
    # Batches of 16 and of 32 have other kernels, which on hardware round activations to eight bits,
    # or sum in another order, by which a key in f16 may come to lie a step aside.
    with wgpu_backend.load(exact=True, kv_dtype="f32") as model:
        watcher = examples["attention_map"].Watcher(model, -1)
        tokens = list(range(5, 25))
        weights, before = watcher.weights(tokens), watcher.weights(tokens[:11])
        watcher.close()
    assert weights.shape == (6, 20, 20)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    assert not np.triu(weights, 1).any()
    np.testing.assert_allclose(weights[:, :11, :11], before, atol=1e-4)


def test_states_of_the_last_layer_are_those_the_logits_are_made_from(examples):
    tokens = [5, 6, 7, 8]
    with wgpu_backend.load(device="cpu") as model:
        # One by one as well: a value of the cache that rounds the other way moves logits by 1e-3.
        head = Head("logits", lambda _, hidden: [model.model.logits(hidden)])
        for token in tokens:
            [wanted] = model.runner.run([Work(0, (token,), (0,))], head, {}).wait()[0]
        watcher = examples["activations"].Watcher(model)
        states = [watcher.states(token) for token in tokens][-1]
        watcher.close()
        llama = model.model
        with model.backend.new_context() as context:
            last = llama.output_norm(context.from_numpy(states[-1:]))
            got = llama.logits(last).numpy()[0]
    np.testing.assert_allclose(got, wanted, atol=1e-4)


UNKNOWN = by_compiler("no definition in scope for identifier: `green`", "unresolved value 'green'")
SOLID = """\
// @import canvas
fn pixel(at: vec2<i32>, frame: u32) -> Pixel {
    return Pixel(vec4<f32>(RED, 1.0), vec4<f32>(0.0));
}
"""


def test_a_shader_is_read_again_when_it_changes_and_a_mistake_leaves_the_picture(
    tmp_path: Path, full, examples, capsys
):
    playground = examples["playground"]
    shutil.copy(SHADERS / "canvas.wgsl", tmp_path)
    file = tmp_path / "solid.wgsl"

    def painted() -> list[float]:
        recorded = graph.get()
        inputs = {"pixels": np.zeros((4, 4, 8), "f4"), "clock": np.zeros(1, "u4")}
        return recorded.run(inputs).wait()[0][1, 1, :3].tolist()

    file.write_text(SOLID.replace("RED", "1.0, 0.0, 0.0"))
    context = Context(full)
    graph = playground.Reloading(context, file, playground.graph_of(file, 4, 1))
    try:
        assert painted() == [1, 0, 0]
        file.write_text(SOLID.replace("RED", "0.0, 0.5, 1.0"))
        assert painted() == [0, 0.5, 1]
        file.write_text(SOLID.replace("RED", "0.0, 0.5, green"))
        assert painted() == [0, 0.5, 1]
        assert f"{file}:3: {UNKNOWN}" in capsys.readouterr().err
        assert painted() == [0, 0.5, 1]
        assert capsys.readouterr().err == ""
    finally:
        graph.close()
        context.close()
        forget(REGISTRY["paint"])


def test_a_mistake_while_a_picture_is_made_ends_the_example(examples):
    window = sys.modules["picture.window"]

    def pictures():
        yield np.zeros((2, 2, 3), "u1"), ""
        raise ZeroDivisionError

    slides = window.Slides(pictures(), (8, 8), 0)
    slides.step()
    assert slides.error is None
    slides.step()
    assert isinstance(slides.error, ZeroDivisionError)
    assert slides.done


def test_a_picture_is_enlarged_by_a_whole_factor(examples):
    window = sys.modules["picture.window"]
    bitmap = window.fitted(np.full((2, 3, 3), 200, "u1"), (10, 9))
    assert bitmap.shape == (9, 10, 4)
    assert (bitmap[..., 0] == 200).sum() == 6 * 9
    assert (bitmap[..., 3] == 255).all()
