"""What an installed package brings is there by its name; one that is broken is a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.implementations import by_compiler
from wgpu_backend import Context, op
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import (
    BackendError,
    ModelError,
    PluginError,
    ShaderError,
)
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, broadcast
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.model import architectures, model_class
from wgpu_backend.ops import plugins
from wgpu_backend.ops.check import ceil_div, grid_for
from wgpu_backend.ops.op import REGISTRY, find
from wgpu_backend.testing import check_op, forget, get_trials

HALVE = """\
// @import formats/load/f32 as x
// @import formats/store/f32 as y
// @import lib/index/grid
const WG: u32 = 64u;
struct Params { size: u32, x_offset: u32 }
@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        y_store4(i, 0.5 * x_load4(params.x_offset + i));
    }
}
"""
OPS = f'''
from wgpu_backend import op
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec, broadcast

@op(source="""{HALVE}""", dense=("x",))
def plugin_halve(x: Node) -> Launch:
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    return Launch(out, {{"x": x}}, threads=-(-out.size // 4), params={{"size": out.size}})

@plugin_halve.reference
def numpy_halve(x):
    return x / 2
'''
MODEL = """
from wgpu_backend import Model, architecture

@architecture("plugin-arch")
class PluginModel(Model):
    def cache_layers(self): ...
    def hidden(self, batch): ...
    def logits(self, hidden): ...
"""
BACKEND = """
from wgpu_backend import register_backend
from wgpu_backend.ml.numpy_executor import NumpyExecutor

register_backend("plugin-kind", lambda params: NumpyExecutor())
"""
ENTRY_POINTS = """\
[wgpu_backend.ops]
plugin_halve = plugin_parts.ops
plugin_broken = plugin_parts.broken

[wgpu_backend.architectures]
plugin-arch = plugin_parts.model

[wgpu_backend.backends]
plugin-kind = plugin_parts.backend
plugin-gone = plugin_parts.gone
"""


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A package in a folder on the path, with the metadata that pip would write."""
    site = tmp_path_factory.mktemp("site")
    info = site / "plugin_parts-1.0.dist-info"
    files = {
        site / "plugin_parts" / "__init__.py": "",
        site / "plugin_parts" / "ops.py": OPS,
        site / "plugin_parts" / "model.py": MODEL,
        site / "plugin_parts" / "backend.py": BACKEND,
        site / "plugin_parts" / "broken.py": "raise RuntimeError('out of cheese')",
        info / "METADATA": "Metadata-Version: 2.1\nName: plugin-parts\nVersion: 1.0\n",
        info / "entry_points.txt": ENTRY_POINTS,
    }
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    sys.path.insert(0, str(site))
    yield site
    sys.path.remove(str(site))


def test_an_op_of_a_package_is_imported_when_named():
    assert "plugin_halve" not in REGISTRY
    found = find("plugin_halve")
    with Context(NumpyExecutor()) as context:
        assert found(context.from_numpy([3.0])).numpy().tolist() == [1.5]


def test_a_broken_package_is_one_warning():
    # Before any device is opened in this process: that asks for all ops, and says it, too.
    with pytest.warns(plugins.PluginWarning) as found:
        plugins.load("wgpu_backend.ops")
    assert [str(w.message) for w in found] == [
        "plugin plugin-parts: wgpu_backend.ops plugin_broken = plugin_parts.broken cannot be "
        "used, RuntimeError: out of cheese"
    ]
    assert find("plugin_halve").name == "plugin_halve"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugins.load("wgpu_backend.ops")


def test_an_op_of_a_package_passes_the_battery(full):
    cases = check_op(find("plugin_halve"), "rows cols", executors={"full": full})
    assert len(cases) == 3 * (5 * 8 + 3) + 2  # and once with many rows, once with many columns
    assert not any(case.refused for case in cases)


def test_an_op_of_a_package_is_in_graphs_and_in_profiles(full):
    with Context(full) as context:
        x = context.input("x", (5,))
        recorded = context.record(find("plugin_halve")(x + 1))
        [y] = recorded.run({"x": np.arange(5, dtype="f4")}).wait()
        assert y.tolist() == [0.5, 1, 1.5, 2, 2.5]
        assert "plugin_halve" in [label for label, _, _ in recorded.timed()]
        recorded.close()


def test_an_architecture_of_a_package_is_known():
    assert "plugin-arch" in architectures()


def test_a_backend_of_a_package_is_made():
    assert isinstance(make_executor("plugin-kind", BackendParams()), NumpyExecutor)


@pytest.mark.slow
def test_the_command_line_warns_of_broken_packages(tmp_path, site):
    info = tmp_path / "odd_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[wgpu_backend.architectures]\nodd = odd_parts\n")
    words = [
        "logits",
        "story",
        "--tokens",
        "1",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "y.npy"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "wgpu_backend", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(site)])},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [line, _] = done.stderr.splitlines()
    assert line == (
        "wgpu-backend: plugin odd-parts: wgpu_backend.architectures odd = odd_parts cannot be "
        "used, ModuleNotFoundError: No module named 'odd_parts'"
    )


def test_a_broken_backend_is_a_warning_then_unknown():
    with (
        pytest.warns(plugins.PluginWarning, match="No module named 'plugin_parts.gone'"),
        pytest.raises(
            BackendError, match=r"'plugin-gone': unknown, needs one of cpu, .*plugin-kind, wgpu"
        ),
    ):
        make_executor("plugin-gone", BackendParams())


def test_an_unknown_op_is_an_error_with_the_known_ones():
    with pytest.raises(
        BackendError, match=r"op 'plugin_nowhere' does not exist, needs one of .*add"
    ):
        find("plugin_nowhere")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("", "it registers nothing, needs a class under @wgpu_backend.architecture"),
        ('@wb.architecture("llama")\n', ":3: ModelError: architecture llama: already registered"),
    ],
)
def test_a_file_is_told_of_itself(tmp_path, head: str, said: str):
    # In a process of its own: what the file asks for first, the package registers meanwhile.
    path = tmp_path / "own.py"
    text = "import wgpu_backend as wb\n\n{}class Own(wb.Decoder):\n    layer = wb.nn.Layer\n"
    path.write_text(text.format(head), encoding="utf-8")
    words = ["show", "story", "--import", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "wgpu_backend", *words],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr.splitlines()[0]


def test_an_op_takes_a_file_or_text_and_not_both():
    with pytest.raises(ValueError, match="op both: it has both shader= and source="):

        @op(shader="ops/elementwise/scale", source=HALVE)
        def both(x: Node) -> Launch:
            raise AssertionError


@pytest.fixture
def inline(full):
    """Make an op from text, run it once, and forget it."""
    made = []

    def run(source: str, **launch: object) -> np.ndarray:
        def inline_op(x: Node) -> Launch:
            out = Spec.dense(x.spec.shape, x.spec.dtype)
            rest = {"threads": x.spec.size, "params": {"size": x.spec.size}, **launch}
            return Launch(out, {"x": x}, **rest)

        made.append(op(source=source, dense=("x",))(inline_op))
        with Context(full) as context:
            return made[-1](context.from_numpy(np.arange(4, dtype="f4"))).numpy()

    yield run
    for one in made:
        forget(one)


PLAIN = """\
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;
struct Params { size: u32 }
const WG: u32 = 64u;
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.size { y[id.x] = -x[id.x]; }
}
"""


def test_plain_wgsl_without_any_import_is_an_op(inline):
    assert inline(PLAIN).tolist() == [0, -1, -2, -3]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "-x[",
            "-z[",
            by_compiler("inline_op:8: no definition in scope", "inline_op:8: unresolved value 'z'")
            + r".*\n8 │ .*\n +\^$",
        ),
        (
            "0) var<storage, read> x",
            "0) var<storage, read> q",
            "inline_op:1: binding q is not an oper",
        ),
        ("read_write> y", "read> y", "inline_op:2: inline_op writes its result into y"),
        ("> y: array<f32>;", "> x: array<f32>;", "inline_op:2: binding x is declared again, first"),
        ("size: u32", "length: u32", r"inline_op:4: Params has length, inline_op gives size"),
        ("size: u32", "size: vec2<u32>", r"inline_op:4: Params: size is vec2<u32>, needs u32"),
        ("fn main", "fn mian", r"inline_op:7: there is no entry point main[^^]*\n7 │ .*\n +\^$"),
        ("(0) @binding(0)", "(0)  @binding(0)", "inline_op:1: binding x needs the form `@group"),
        ("_size(WG)", "_size(8)", "inline_op:6: the launch counts threads"),
        (
            "var<uniform> params",
            "var<uniform> p",
            by_compiler("inline_op:8: no definition in scope", "inline_op:8: unresolved value"),
        ),
    ],
)
def test_a_slip_in_an_ops_wgsl_is_an_error_with_the_line(inline, old: str, new: str, message: str):
    assert old in PLAIN
    with pytest.raises(ShaderError, match=message):
        inline(PLAIN.replace(old, new, 1))


@pytest.mark.parametrize(
    ("body", "where", "message"),
    [
        (
            "let k = 2;\n y[id.x] = x[id.x + k];",
            (9, 14),
            by_compiler(
                "`+` takes two of one type, here u32",
                "no matching overload for 'operator + (u32, i32)'",
            ),
        ),
        (
            "y[id.x] =\n x[id.x] * id.x;",
            by_compiler((8, 1), (9, 2)),
            by_compiler(
                "u32 stands where f32 is needed; convert it: f32(",
                "no matching overload for 'operator * (f32, u32)'",
            ),
        ),
        (
            "let v = x[id.x];\n v = 2.0;",
            by_compiler((8, 5), (9, 2)),
            by_compiler(
                "`v` is declared with let, which keeps its value", "cannot assign to 'let v'"
            ),
        ),
        (
            "y[id.x] = absx(x[id.x]);",
            (8, 11),
            by_compiler("identifier: `absx`; did you mean `abs`?", "unresolved call target 'absx'"),
        ),
    ],
)
def test_a_mistake_of_types_is_shown_in_the_wgsl(inline, body, where, message):
    source = PLAIN.replace("    if id.x < params.size { y[id.x] = -x[id.x]; }", body)
    with pytest.raises(ShaderError) as found:
        inline(source)
    (line, column), (first, shown, caret) = where, str(found.value).splitlines()
    assert f"inline_op:{line}: " in first
    assert message in first
    assert shown == f"{line} │ {source.splitlines()[line - 1]}"
    assert caret.index("^") - len(f"{line} │ ") + 1 == column


@pytest.mark.parametrize(
    ("formula", "place"),
    [
        (
            "fn apply(x: f32) -> f32 { return x; }",
            by_compiler("argument 1 is not of the type", "type mismatch for argument 1"),
        ),
        (
            "fn aply(x: vec4<f32>) -> vec4<f32> { return x; }",
            by_compiler("no definition in scope", "unresolved call target 'apply'"),
        ),
    ],
)
def test_a_wrong_formula_is_reported_at_its_line(inline, formula, place):
    with pytest.raises(ShaderError, match=r"\n2 │ fn ap") as found:
        inline(f"// @import lib/elementwise/unary\n{formula}\n")
    assert f"inline_op:2: {place}" in str(found.value)
    line, caret = str(found.value).splitlines()[-2:]
    assert line[caret.index("^") :].startswith("ap")
    line = "lib/elementwise/unary.wgsl:32 has `y_store4(i, apply(x_values(i)));`"
    assert line in str(found.value)


OF_TWO = """\
fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> { return a + b; }
// @import lib/elementwise/binary
"""


@pytest.mark.parametrize(
    ("source", "line", "shown"),
    [
        (HALVE.replace("f32 as x", "f32 as q"), 1, "// @import formats/load/f32 as q"),
        (HALVE.replace("f32 as y", "f32 as z"), 2, "// @import formats/store/f32 as z"),
        (HALVE.replace("f32 as x", "f32"), 1, "// @import formats/load/f32"),
        (OF_TWO, 2, "// @import lib/elementwise/binary"),
    ],
)
def test_an_imported_binding_is_reported_at_its_op(inline, source, line, shown):
    with pytest.raises(ShaderError, match=f"inline_op.*:{line}: binding .* is not an op") as found:
        inline(source)
    assert str(found.value).splitlines()[1] == f"{line} │ {shown}"
    caret = str(found.value).splitlines()[2].index("^") - len(f"{line} │ ")
    assert shown[caret:] == shown.split()[-1]


def test_params_that_the_shader_lacks_are_an_error(inline):
    with pytest.raises(ShaderError, match="inline_op:4: inline_op gives alpha, Params has size"):
        inline(PLAIN, params={"size": 4, "alpha": 1.0})


STRAY = {
    "one value too many": ("id.x < params.size", "id.x <= params.size", "outside the result: to"),
    "far away": ("y[id.x]", "y[id.x + 4096u]", "outside the result: to"),
    "too few": ("id.x < params.size", "id.x + 1u < params.size", "of .* values unwritten"),
    "a neighbour's": ("-x[id.x]", "-x[id.x + 1u]", "differ"),
}


@pytest.mark.parametrize("what", STRAY)
def test_a_kernel_that_leaves_its_tensors_is_found(full, what: str):
    old, new, message = STRAY[what]

    @op(source=PLAIN.replace(old, new), dense=("x",))
    def stray_op(x: Node) -> Launch:
        out = Spec.dense(x.spec.shape, x.spec.dtype)
        return Launch(out, {"x": x}, threads=out.size + 8, params={"size": out.size})

    try:
        # Without a reference only red zones find faults, except for what stays inside.
        if what == "a neighbour's":
            stray_op.reference(lambda x: -x)
        with pytest.raises(AssertionError, match=message):
            check_op(stray_op, "n", dtypes=(F32,), executors={"full": full})
    finally:
        forget(stray_op)


def test_an_op_that_writes_into_an_operand_is_found(full):
    source = PLAIN.replace("read> x", "read_write> x").replace("= -x[id.x]", "= 1.0; x[id.x] = 7.0")

    @op(source=source, dense=("x",))
    def vandal_op(x: Node) -> Launch:
        out = Spec.dense(x.spec.shape, x.spec.dtype)
        return Launch(out, {"x": x}, threads=out.size, params={"size": out.size})

    try:
        with pytest.raises(AssertionError, match="it writes into operand x, the first time to ind"):
            check_op(vandal_op, "n", dtypes=(F32,), executors={"full": full})
    finally:
        forget(vandal_op)


def test_an_op_that_needs_options_says_how_to_try_it():
    @op(source=PLAIN)
    def optional_op(x: Node, *, alpha: float) -> Launch:
        raise AssertionError

    try:
        with pytest.raises(BackendError, match=r"op optional_op: it needs alpha, .*trial\("):
            get_trials(optional_op)
    finally:
        forget(optional_op)


@pytest.mark.slow
def test_the_battery_takes_operands_that_broadcast(full):
    cases = check_op(find("add"), "rows cols", "rows cols", broadcast=True, executors={"f": full})
    assert {shape for case in cases for shape in case.shapes} >= {(1, 1), (33,), (257, 1)}


def file_model(folder: Path, name: str) -> Path:
    path = folder / "my_model.py"
    (folder / "beside.py").write_text(f"NAME = {name!r}\n", encoding="utf-8")
    text = MODEL.replace('"plugin-arch"', "beside.NAME")
    path.write_text(f"import beside\n{text}", encoding="utf-8")
    return path


def test_a_file_is_imported_by_its_path_once(tmp_path):
    path = file_model(tmp_path, "file-arch")
    module = plugins.import_file(path)
    assert architectures()["file-arch"] is module.PluginModel
    assert sys.modules[module.__name__] is module
    assert plugins.import_file(str(path)) is module
    assert str(tmp_path) not in sys.path
    sys.modules.pop("beside")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = (2\n", r"own.py:2: '\(' was never closed\n2 │ y = \(2\n +\^$"),
        ("a = 0\nb = 1 / a\n", r"own.py:2: ZeroDivisionError: division by zero\n2 │ b = 1 / a$"),
        ("x = 1\n", r"own.py: it registers nothing, needs a class under @wgpu_backend.architec"),
    ],
)
def test_an_unusable_file_is_an_error_with_the_place(tmp_path, text, message):
    path = tmp_path / "own.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PluginError, match=message):
        plugins.import_file(path)


def test_what_is_no_python_file_is_named_as_what_it_is(tmp_path):
    (tmp_path / "model.gguf").touch()
    for name, message in (
        ("gone.py", "gone.py: no such file"),
        (".", "a directory, needs a Python file"),
        ("model.gguf", "the name ends in '.gguf', needs .py"),
    ):
        with pytest.raises(PluginError, match=message):
            plugins.import_file(tmp_path / name)


def test_an_unknown_architecture_says_how_to_add_it():
    config = Config("x.gguf", {"general.architecture": "nobodys"})
    with pytest.raises(ModelError, match=r"'nobodys' is unknown; docs/models.md") as found:
        model_class(config)
    assert len(str(found.value)) < 250
    assert "`import my_model`" in str(found.value)
    assert "`wgpu-backend run --import my_model.py MODEL`" in str(found.value)
    config = Config("x.gguf", {"general.architecture": "lama"})
    with pytest.raises(ModelError, match="did you mean 'llama'"):
        model_class(config)


def tried(executor, record, source, *shapes, reference=None, dense=(), **how) -> str:
    """What the battery says of an op from outside; nothing where it finds nothing."""
    made = op(source=source, dense=dense)(record)
    if reference is not None:
        made.reference(reference)
    try:
        check_op(made, *shapes, executors={"full": executor}, dtypes=(F32,), **how)
    except AssertionError as error:
        return str(error)
    finally:
        forget(made)
    return ""


def test_an_op_on_lib_unary_needs_only_its_formula(full):
    def soft_sign(x: Node) -> Launch:
        out = Spec.dense(x.spec.shape, x.spec.dtype)
        return Launch(out, {"x": x}, threads=ceil_div(out.size, 4))

    formula = "fn apply(x: vec4<f32>) -> vec4<f32> { return x / (1.0 + abs(x)); }"
    source = f"// @import lib/elementwise/unary\n{formula}\n"
    how = {"nonfinite": False, "limit": 1e-6}
    assert (
        tried(full, soft_sign, source, "rows cols", reference=lambda x: x / (1 + abs(x)), **how)
        == ""
    )


@pytest.mark.slow
def test_an_op_on_lib_binary_broadcasts_and_needs_no_more(full):
    def apart(a: Node, b: Node) -> Launch:
        out = Spec.dense(broadcast("apart", a.spec, b.spec), a.spec.dtype)
        return Launch(out, {"a": a, "b": b}, threads=ceil_div(out.size, 4))

    formula = "fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> { return (a - b) * (a - b); }"
    source = f"// @import lib/elementwise/binary\n{formula}\n"
    how = {"broadcast": True, "nonfinite": False}
    shapes = ("rows cols", "rows cols")
    assert tried(full, apart, source, *shapes, reference=lambda a, b: (a - b) ** 2, **how) == ""


ROWS = """\
// @import formats/load/f32 as x
// @import lib/index/grid
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
struct Params { rows: u32, cols: u32, x_offset: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let row = group_index(id, groups);
    if row >= params.rows { return; }
    for (var col = 0u; col < params.cols; col++) {
        let i = row * params.cols + col;
        y[i] = 2.0 * x_load(params.x_offset + i);
    }
}
"""


@pytest.mark.parametrize("spread_out", [True, False])
def test_the_battery_finds_grids_of_too_many_groups(full, spread_out):
    def row_twice(x: Node) -> Launch:
        rows, cols = x.spec.shape
        groups = grid_for(rows) if spread_out else (rows, 1, 1)
        params = {"rows": rows, "cols": cols}
        return Launch(Spec.dense(x.spec.shape, F32), {"x": x}, groups=groups, params=params)

    said = tried(full, row_twice, ROWS, "rows cols", reference=lambda x: 2 * x, dense=("x",))
    if spread_out:
        assert said == ""
    else:
        assert "(70000, 3)" in said
        assert "takes 0 to 65535; groups=grid_for(count) in the Launch" in said


def test_a_launch_without_a_size_is_an_error():
    @op(source=PLAIN)
    def sizeless(x: Node) -> Launch:
        return Launch(Spec.dense(x.spec.shape, F32), {"x": x}, params={"size": x.spec.size})

    with (
        Context(NumpyExecutor()) as context,
        pytest.raises(BackendError, match=r"^sizeless: its Launch has neither .*ceil_div\(5, 4\)"),
    ):
        sizeless(context.from_numpy(np.ones(5)))
    forget(sizeless)


BEYOND = """\
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;
struct Params { size: u32, x_offset: u32 }
const WG: u32 = 64u;
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.size { y[id.x] = x[params.x_offset + id.x] + x[WHERE]; }
}
"""


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("params.x_offset + id.x + 1u", r"x\[\d+\], 1 past the end of its storage of"),
        ("params.x_offset + id.x + 5u", r"x\[\d+\], 3 past the end of its storage of"),
        ("params.x_offset + params.size + 6u", r"x\[\d+\], 7 past the end of its storage of"),
    ],
)
def test_a_read_past_an_operand_is_reported_by_name(full, where, message):
    def reads_on(x: Node) -> Launch:
        out = Spec.dense(x.spec.shape, F32)
        return Launch(out, {"x": x}, threads=out.size)

    source = BEYOND.replace("WHERE", where)
    how = {"dense": ("x",), "nonfinite": False}
    said = tried(full, reads_on, source, "n", reference=lambda x: x, **how)
    place = r"of \(3,\) on \S+ full, f32, dense: it reads outside operand x:"
    assert re.search(f"{place} {message} 3 ", said)
