"""Every example runs as a user runs it, and shows what its first lines promise."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.patience import PATIENCE
from wgpu_backend import Devices

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
DATA = EXAMPLES.parent / "tests" / "data"
ARGUMENTS = {
    "generate": ["--tokens", "24"],
    "mlx_model": [str(DATA / "mlx_qwen3"), "--ids", "3,60,17,99,5,44,81,2,120,63,7"],
}
# What a line of the output must look like.
SHOWN = {
    "devices": r"^cpu +NumPy",
    "tensor_tour": r"^up\.concat\(down, axis=1\) +\(3, 8\) +equal$",
    "generate": r"^24 tokens, \d+ per second, on \S",
    "chat": r"^  \[\d+ tokens computed, [1-9]\d+ from the cache, [1-9]\d* made\]$",
    "embed": r"^-?\d\.\d\d  A fox found a lantern in the forest\.$",
    "custom_op": r"^snake\(2\.00\) = 3\.416, NumPy has 3\.416$",
    "fused_op": r"^\(a - b\)² runs as square_apart$",
    "custom_model": r"^the same tokens greedily on both sides: \[\d+(, \d+){7}\]$",
    "compare_dump": r"^10 of 10 are alike on \S",
    "mlx_model": r"^45 47 91 4 102 69 88 69 4 69 22 43 98 43 69 104$",  # as mlx-lm
    "profile_step": r"^linear\w* +\d+ +\d+\.\d\d ms +\d+%$",
}
WITH_A_WINDOW = {"attention_map", "activations", "imagine_window", "playground"}  # test_windows.py
ELSEWHERE = {"onnx_model"}  # test_array_examples.py
ON_NUMPY = ("tensor_tour", "custom_op")
SLOWLY_ON_NUMPY = ("generate", "custom_model", "profile_step")


def run(name: str, *arguments: str) -> str:
    words = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(
        words, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "DIFFERENT" not in done.stdout
    return done.stdout


def nmse(output: str) -> float:
    found = re.search(r"NMSE.*?(\d\.\de[+-]\d+)", output)
    assert found, output
    return float(found[1])


def need_an_adapter() -> None:
    if Devices()[0].kind == "cpu":
        pytest.skip("no GPU adapter here: install a Vulkan driver, lavapipe for example")


def test_every_example_is_tested():
    assert {*SHOWN, *WITH_A_WINDOW, *ELSEWHERE} == {path.stem for path in EXAMPLES.glob("*.py")}


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("name", SHOWN)
def test_examples_run_on_the_best_adapter(name: str):
    need_an_adapter()
    output = run(name, *ARGUMENTS.get(name, []))
    assert re.search(SHOWN[name], output, re.MULTILINE), output
    if "NMSE" in output:
        assert nmse(output) < 1e-5  # WGSL lets a sine be off by 2⁻¹¹


@pytest.mark.parametrize(
    "name", [*ON_NUMPY, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOWLY_ON_NUMPY)]
)
def test_examples_run_on_numpy(name: str):
    where = ["--device", "cpu"] if name == "generate" else ["cpu"]
    output = run(name, *ARGUMENTS.get(name, []), *where)
    assert re.search(SHOWN[name], output, re.MULTILINE), output
    if "NMSE" in output:
        assert nmse(output) < 1e-11  # f32 on one side, double precision on the other


@pytest.mark.parametrize("name", SHOWN)
def test_examples_open_with_what_one_sees(name: str):
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert f"$ python examples/{name}.py" in text.split('"""')[1]


@pytest.mark.slow
def test_the_second_turn_of_the_chat_computes_less_than_it_reuses():
    output = run("chat", "cpu")
    turns = re.findall(r"\[(\d+) tokens computed, (\d+) from the cache", output)
    (_, first), (computed, reused) = [(int(a), int(b)) for a, b in turns]
    assert first == 0
    assert computed < reused


@pytest.fixture(scope="session")
def custom_op() -> ModuleType:
    """The example as a module; an op may be registered once only, so once a run."""
    spec = importlib.util.spec_from_file_location("custom_op", EXAMPLES / "custom_op.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("size", [1, 3, 33, 257])
def test_snake_of_a_transposed_tensor_agrees_with_numpy(gpu, check, rng, custom_op, size):
    x = rng.standard_normal((size, 5), "f4")
    # WGSL lets a sine be off by 2⁻¹¹, so its square over alpha by 2e-3, beside values near 1.
    check(gpu, lambda ctx: custom_op.snake(ctx.from_numpy(x).transpose(), alpha=0.5), limit=1e-5)


def test_custom_op_is_short():
    lines = (EXAMPLES / "custom_op.py").read_text(encoding="utf-8").split('"""', 2)[2]
    code = re.sub(r'    """.*?"""\n', "", lines, flags=re.DOTALL)
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 40
