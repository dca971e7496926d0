"""What the battery tries: each kind of mistake is found by the case that is meant for it."""

import math
import pydoc

import numpy as np
import pytest

from wgpu_backend import testing
from wgpu_backend.dtypes import F16, F32, I32, Q4_0, Q6_K
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.testing.operands import LAYOUTS, cases, values
from wgpu_backend.ops.check import pad_to_4d, require_dtype
from wgpu_backend.ops.op import find, op
from wgpu_backend.testing import (
    _worst,
    check_op,
    count_cases,
    find_hint,
    forget,
    get_trials,
    nmse,
    run_trial,
)

COPY = """\
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;
struct Params { size: u32, x_offset: u32, shape: vec4<u32>, x_strides: vec4<u32> }
const WG: u32 = 64u;
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let row = i / params.shape.w;
    let at = vec4<u32>(0u, row / params.shape.z, row % params.shape.z, i % params.shape.w);
    let along = at * params.x_strides;
    let value = x[params.x_offset + along.y + along.z + along.w];
    if i < params.size { y[i] = value; }
}
"""


@pytest.fixture
def found(full):
    """Layouts and shapes of the cases that fail when an op copies its operand in some way."""
    made = []

    def run(old: str = "", new: str = "", dense=()) -> set[tuple[str, tuple[int, ...]]]:
        def copied_op(x: Node) -> Launch:
            require_dtype("copied_op", "x", x, (F32,))
            out = Spec.dense(x.spec.shape, F32)
            shape, strides = pad_to_4d(out.shape, 1), pad_to_4d(x.spec.strides, 0)
            params = {"size": out.size, "shape": shape, "x_strides": strides}
            return Launch(out, {"x": x}, threads=max(out.size, 1), params=params)

        assert old in COPY
        made.append(op(source=COPY.replace(old, new, 1), dense=dense)(copied_op))
        made[-1].reference(lambda x: x.copy())
        [tried] = get_trials(made[-1])
        done = run.cases = list(run_trial(tried, {"full": full}))
        run.counted = count_cases(tried, {"full": full})
        assert {c.layout for c in done} == set(LAYOUTS)
        assert all(c.refused == (c.dtype != "f32") for c in done)
        return {(c.layout, c.shapes[0]) for c in done if c.problem and not c.refused}

    yield run
    for one in made:
        forget(one)


def test_an_op_that_is_right_fails_nowhere(found):
    assert found() == set()


def test_not_a_number_made_a_zero_is_found(found):
    assert found("= value", "= select(0.0, value, value == value)") == {("nonfinite", (257, 3))}


def test_a_write_where_there_is_nothing_is_found(found):
    failed = found("i < params.size {", "i < max(params.size, 1u) {")
    assert failed == {("dense", (0, 3)), ("dense", (257, 0))}


@pytest.mark.parametrize(
    ("old", "new", "missed"),
    [
        ("along.w]", "at.w]", {"permuted", "transposed"}),
        ("along.z +", "at.z * params.shape.w +", {"sliced", "stepped", "repeated"}),
        ("params.x_offset + along", "along", {"sliced", "shifted"}),
    ],
)
def test_strides_and_offsets_that_are_not_looked_at_are_found(found, old, new, missed):
    failed = {layout for layout, _ in found(old, new)}
    assert missed <= failed
    assert not failed & {"dense", "computed", "nonfinite"}


def test_the_place_of_a_difference_is_one_where_values_differ():
    got, want = np.ones((2, 6), np.float32), np.ones((2, 6), np.float32)
    got[0, 1] = want[0, 1] = np.nan
    got[0, 2] = want[0, 2] = np.inf
    got[1, 3], want[1, 3] = 2.0, np.nan
    assert _worst(got, want) == "1 of 12 differ; at (1, 3) 2.0, NumPy has nan"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("params.x_offset + along", "along", "only operands that begin after the start of"),
        ("along.w]", "at.w]", 'only strided operands fail: add dense=("x",) or use x_strides'),
        ("params.x_offset + along.y + along.z + along.w", "i", "only strided operands fail"),
        ("= value", "= value + 1.0", ""),
        ("", "", ""),
    ],
)
def test_where_only_operands_of_some_layouts_fail_a_hint_says_so(found, old, new, said):
    found(old, new)
    assert find_hint(found.cases)[: len(said) or None] == said


def test_a_difference_that_both_runs_have_is_told_once(found):
    found("= value", "= value + 1.0")
    problems = [c.problem for c in found.cases if c.problem and not c.refused]
    assert problems
    assert all(p.count("NMSE") == 1 and "red zones" not in p for p in problems)


def test_help_shows_how_an_op_is_tried():
    shown = pydoc.plain(pydoc.render_doc(testing))
    assert "class Trial(" in shown
    assert "    trial(op: " in shown
    assert "0, 1, 2 alone" in shown[: shown.index("CLASSES")]


def test_an_offset_that_is_forgotten_beside_dense_has_the_hint_too(found):
    failed = found("params.x_offset + along.y + along.z + along.w", "i", dense=("x",))
    assert failed == {("sliced", (1, 16))}
    assert find_hint(found.cases).startswith("only operands that begin after the start of")


def test_cases_are_counted_before_they_run(found):
    found()
    assert len(found.cases) == found.counted == 3 * 43 + 2


def test_a_signalling_nan_is_a_difference_and_no_warning():
    got = np.array([0x7FA00000, 0x3F800000], np.uint32).view(np.float32)
    assert math.isnan(nmse(got, np.ones(2, np.float32)))


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (lambda x: x.reshape(-1, 7), r"its reference fails, ValueError: cannot reshape"),
        (lambda x: x[:, None], r"its reference gives shape \(1, 1\), needs \(1,\)"),
        (lambda x: x[1:], r"its reference gives shape \(0,\), needs \(1,\)"),
    ],
)
def test_a_reference_that_fails_or_gives_another_shape_is_a_case_that_fails(full, reference, said):
    @op(source=COPY)
    def bare_op(x: Node) -> Launch:
        out = Spec.dense(x.spec.shape, F32)
        shape, strides = pad_to_4d(out.shape, 1), pad_to_4d(x.spec.strides, 0)
        params = {"size": out.size, "shape": shape, "x_strides": strides}
        return Launch(out, {"x": x}, threads=out.size, params=params)

    bare_op.reference(reference)
    try:
        with pytest.raises(AssertionError, match=said):
            check_op(bare_op, "n", dtypes=(F32,), executors={"full": full})
    finally:
        forget(bare_op)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [Q4_0, Q6_K], ids=str)
def test_operands_in_blocks(full, dtype):
    executors = {"full": full}
    options = {"dtypes": (F32, F16), "limit": 5e-4}
    products = check_op(
        find("linear"), f"m k:{dtype}", "n k", executors=executors, nonfinite=False, **options
    )
    assert len(products) == 2 * (5 * 8 + 1) + 1  # a weight has at least a row; one with very many
    taken = check_op(find("rows"), f"9 512:{dtype}", "k:i32", executors=executors, dtypes=(I32,))
    assert not any(case.refused for case in taken)


def test_names_count_the_blocks_of_rows():
    shapes = {shape for shape, _ in cases(("m k:q6_k", "n k"), broadcast=False)}
    assert {b[1] for _, b in shapes} == {256, 512, 768, 1280}
    assert 0 not in {a[0] for a, _ in shapes}
    assert 0 in {b[0] for _, b in shapes}
    assert values(np.random.default_rng(0), Q6_K, (3, 512)).shape == (3, 2 * Q6_K.block_nbytes)
