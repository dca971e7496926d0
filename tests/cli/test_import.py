"""A model of the user's own, brought by `--import FILE.py`."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.builders import tiny_model
from tests.cli.conftest import Cli
from wgpu_backend.engine.loading import bundled
from wgpu_backend.nn import model
from wgpu_backend.ops import plugins

FAILED, USAGE = 1, 2
OWN = """\
from wgpu_backend import architecture
from wgpu_backend.models.llama import Llama


@architecture("cli-own")
class Own(Llama):
    pass
"""
LAYERS = """\
import wgpu_backend as wb


class Mixing(wb.nn.Module):
    def __init__(self, inner):
        self.inner = inner

    @property
    def cached(self):
        return self.inner.cached

    def forward(self, x, batch):
        return self.inner.forward(x, batch)

    def project(self, y, residual=None):
        return self.inner.project(y, residual)


class Block(wb.nn.Layer):
    def forward(self, x, batch):
        return super().forward(x, batch)


@wb.architecture("cli-own")
class Own(wb.Decoder):
    def layer(self, config):
        mixing = Mixing(wb.nn.SelfAttention(config, self.rope))
        return Block(config, mixing, wb.nn.MLP(config))
"""
CPU = ("--device", "cpu")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Program of a model that is known only in this test, and that nobody imported."""
    monkeypatch.setattr(model, "_ARCHITECTURES", dict(model.architectures()))
    monkeypatch.setattr(plugins, "_files", {})
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("own") / "own.gguf", "cli-own")


@pytest.mark.parametrize(
    "command",
    [
        "run {} hi --num-predict 2 --device cpu",
        "show {}",
        "tokenize {} hi",
        "logits {} --tokens 1,2 -o {}.npy --device cpu",
        "embed {} hi --device cpu",
        "bench {} -p 2 -n 0 -r 1 --device cpu",
        "profile {} -p 2 --device cpu",
        "graph {} -p 2 --device cpu",
    ],
)
def test_every_command_takes_a_model_of_ones_own(
    cli: Cli, own: Path, weights: Path, command: str
) -> None:
    words = [word.replace("{}", str(weights)) for word in command.split()]
    done = cli(words[0], "--import", str(own), *words[1:])
    assert done.code == 0, done.err
    assert done.out or words[0] == "logits"


def test_without_it_the_error_says_how(cli: Cli, weights: Path) -> None:
    done = cli("run", str(weights), "hi", *CPU)
    assert (done.code, done.out) == (FAILED, "")
    [line] = done.err.splitlines()
    assert "architecture 'cli-own' is unknown" in line
    assert "`wgpu-backend run --import my_model.py MODEL`" in line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone.py", "--import: {}/gone.py: no such file"),
        (".", "{}: a directory, needs a regular file"),
        ("own.txt", "{}/own.txt: the name ends in '.txt', needs .py"),
    ],
)
def test_what_is_no_python_file_cannot_be_imported(
    cli: Cli, tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "own.txt").touch()
    done = cli("run", "--import", str(tmp_path / name), "story", "hi", *CPU)
    expected = f"wgpu-backend: {said.replace('{}', str(tmp_path))}\n"
    assert (done.code, done.out, done.err) == (USAGE, "", expected)


def test_a_slip_in_the_file_is_shown_with_its_line(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("x = 1\ny = (2\n", encoding="utf-8")
    done = cli("show", "story", "--import", str(path))
    assert (done.code, done.out) == (FAILED, "")
    assert done.err == (
        f"wgpu-backend: {path}:2: '(' was never closed\n2 │ y = (2\n" + " " * 8 + "^\n"
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("", "", "", ""),
        (
            "def project",
            "def projct",
            "class Mixing",
            "AttributeError: 'Mixing' object has no attribute 'project'",
        ),
        (
            "self.inner.forward",
            "self.iner.forward",
            "self.iner.forward",
            "AttributeError: 'Mixing' object has no attribute 'iner'",
        ),
        (
            "def forward(self, x, batch):\n        return super",
            "def forward(self, x):\n        return super",
            "def forward(self, x):",
            "TypeError: Block.forward() takes 2 positional arguments but 3 were given",
        ),
        ("MLP(config)", "MLP(config, gatd=True)", "gatd", "TypeError: MLP.__init__() got an unexp"),
        (
            "MLP(config)",
            'MLP(config, "geluu")',
            "geluu",
            "ModelError: activation is 'geluu', needs one of silu, gelu, gelu_erf, gelu_quick, ",
        ),
        (
            "return self.inner.forward(x, batch)",
            "return self.inner.forward(x.slice(-1, 0, 3), batch)",
            "x.slice",
            "ShapeError: mulmat: rows of x have 3 values",
        ),
        (
            "def layer",
            "def lyer",
            "@wb.architecture",
            "ModelError: architecture cli-own: Own lacks layer, which it has to define",
        ),
        (
            '"cli-own"',
            '"llama"',
            "@wb.architecture",
            "ModelError: architecture llama: already registered by wgpu_backend.models.llama.Llama",
        ),
        ('("cli-own")', "", "@wb.architecture", "ModelError: architecture: a name is needed"),
        (
            "Own(wb.Decoder)",
            "Own",
            "@wb.architecture",
            "ModelError: architecture cli-own: Own is not a wgpu_backend.Model; inherit from",
        ),
    ],
)
def test_a_slip_in_a_model_is_told_with_the_files_line(
    cli: Cli, own: Path, weights: Path, old: str, new: str, line: str, said: str
) -> None:
    text = LAYERS.replace(old, new, 1)
    own.write_text(text, encoding="utf-8")
    done = cli("run", "--import", str(own), str(weights), "hi", "--num-predict", "2", *CPU)
    if not said:
        assert (done.code, done.err) == (0, "")
        return
    number = text[: text.index(line)].count("\n") + 1
    assert (done.code, done.out) == (FAILED, "")
    assert done.err.startswith(f"wgpu-backend: {own}:{number}: {said}")
    assert len(done.err.splitlines()) == (2 if line == "@wb.architecture" else 1)


def test_the_example_of_a_model_uses_public_names_and_runs(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "_ARCHITECTURES", dict(model.architectures()))
    monkeypatch.setattr(plugins, "_files", {})
    example = Path(__file__).parents[2] / "examples" / "custom_model.py"
    text = example.read_text(encoding="utf-8")
    assert "import wgpu_backend as wb\n" in text
    assert text.count("wgpu_backend") == 1
    path = tmp_path / "story-parallel.gguf"
    runpy.run_path(str(example))["write"](path)
    model._ARCHITECTURES.pop("story-parallel")
    done = cli("run", "--import", str(example), str(path), "Once", "--num-predict", "4", *CPU)
    assert done.code == 0, done.err
    assert done.out


def test_a_file_of_another_architecture_whose_keys_stayed_says_unknown(
    cli: Cli, tmp_path: Path
) -> None:
    path = tmp_path / "own.gguf"
    name = b"general.architecture" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little")
    path.write_bytes(bundled().read_bytes().replace(name + b"llama", name + b"lxama", 1))
    done = cli("run", str(path), "hi", *CPU)
    assert done.code != 0
    assert "architecture 'lxama' is unknown" in done.err
    assert "--import" in done.err
