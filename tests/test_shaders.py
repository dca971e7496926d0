"""The WGSL files as a whole: each compiles with each snippet, within WebGPU's default limits."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import wgpu_backend.kernels
import wgpu_backend.ops
from wgpu_backend.device.wgsl.limits import blank_comments, variable_nbytes
from wgpu_backend.device.wgsl.module import imports, load
from wgpu_backend.graph.wgsl_source import alternatives, paths, read
from wgpu_backend.ops.op import REGISTRY
from wgpu_backend.ops.reference import get_reference

FOLDER = Path(__file__).parent.parent / "shaders"
# Kernels with matrix units, which naga does not know: tests/kernels/gpu/test_matrix.py,
# test_attention_matrix.py and test_conv_matrix.py have Tint compile them.
ON_DAWN = {
    f"kernels/gpu/{name}"
    for name in ("matmul_matrix", "matmul_matrix_by_expert", "attention_matrix", "conv_matrix")
}
KERNELS = [
    path
    for path in paths()
    if re.fullmatch(r"\w+|(ops|kernels)/\w+/\w+", path) and path not in ON_DAWN
]
FLOATS = ["bf16", "f16", "f32"]
PLAIN = ("formats/load", "formats/store", "formats/vec4")
# Imports of kernels that read plain weights: which go together is what ops choose.
TOGETHER = {
    "source",
    "row_mapping",
    "lane_epilogue",
    "prologue",
    "convert",
    "key",
    "pair",
    "iteration",
}
# Rows for experts are never planar; products that round load what they add as vectors.
PACKED = {("kernels/rasteriser/matmul_q8_by_expert", "x"), ("kernels/gpu/matvec_q8", "epilogue")}
# Weights that an op refuses, as they leave no bindings.
REFUSED = {
    (kernel, "formats/dequant/iq3_s")
    for kernel in ("ops/moe/linear_by_expert_sum", "kernels/gpu/matvec_by_expert_sum")
}
REFUSED |= {
    ("ops/reduce/reduce_column_vec4", f"lib/reduce_op/{kind}_wide")
    for kind in ("sum", "prod", "extreme")
}
# Operands of attention that may be missing: they share a binding then.
MISSING = {"ends": "=positions", "sinks": "=q", "bias": "=q"}
# As `rope_attention` has it where positions and sequences are in one buffer.
PREPARED = {
    **MISSING,
    "prologue": "lib/attention/rope_put",
    "q": "formats/store/f32",
    "new_key": "=q",
    "new_value": "=q",
    "sequences": "=positions",
}
# `rope_attention` asks whether the device shows as many.
NORMED = {"prologue": "lib/attention/norm_rope_put"}
MORE_BINDINGS = {"lib/attention/norm_rope_put": 2, "kernels/gpu/prologue/norm_rope_put": 2}
BASELINE_BINDINGS, BASELINE_WORKGROUP_NBYTES = 8, 16384

for package in (wgpu_backend.ops, wgpu_backend.kernels):
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
OWN = ("wgpu_backend.ops.", "wgpu_backend.kernels.")
OPS = sorted(n for n, op in REGISTRY.items() if op.__module__.startswith(OWN))


def variants(kernel):
    """Choices that a kernel is compiled with: the defaults, and each other value on its own."""
    declared = imports(kernel)
    base = MISSING if declared.modules.keys() >= MISSING.keys() else {}
    yield from ({**base, **choices} for choices in others(kernel, declared))


def others(kernel, declared):
    yield {}
    for name, default in declared.modules.items():
        folder, _, stem = default.rpartition("/")
        if (
            name in TOGETHER
            or (kernel, name) in PACKED
            or (folder.startswith("kernels/") and folder.endswith("/lib"))
        ):
            continue  # of a family, whose own tests say what takes the place of what
        if folder in PLAIN:
            kinds = FLOATS if stem in FLOATS else ()
            yield from ({name: f"{folder}/{s}"} for s in kinds if s != stem)
        else:
            known = (other for other in alternatives(default) if (kernel, other) not in REFUSED)
            yield from ({name: other, **words_of(other, declared)} for other in known)
    text = load(kernel).text
    for name, value in re.findall(r"^const (\w+): bool = (\w+);", text, re.MULTILINE):
        yield {name: value == "false"}
    if "WG" in declared.parameters:
        yield {"WG": 8}


def words_of(reduction, declared):
    """Choices that go with a reduction of integers of 64 bits."""
    if not reduction.startswith("lib/reduce_op/") or not reduction.endswith("_wide"):
        return {}
    own = {"fours": "lib/reduce_vec4/left_out"} if "fours" in declared.modules else {}
    read = [name for name in ("x", "carry", "dst") if name in declared.modules]
    return {**own, **dict.fromkeys(read, "formats/bits_load/wide")}


def merges():
    """In-place variants, as ops that allow them are compiled."""
    for name in ("ops/elementwise/add", "ops/elementwise/swiglu"):
        yield from ((name, {operand: "=y"}) for operand in "ab")
    yield from ((name, {"x": "=y"}) for name in ("ops/elementwise/silu", "ops/elementwise/scale"))


CASES = [(kernel, choices) for kernel in KERNELS for choices in variants(kernel)]
CASES += merges()
INTEGERS = {
    kind: {"Value": kind, "FLOAT": False, **dict.fromkeys("ab", f"formats/load/{kind}")}
    for kind in ("i32", "u32")
}
OF_INTEGERS = (
    *(
        f"ops/elementwise/{name}"
        for name in ("add", "sub", "mul", "maximum", "minimum", "power_whole")
    ),
    *(f"ops/elementwise/bitwise_{name}" for name in ("and", "or", "xor")),
    *(
        "ops/elementwise/left_shift",
        "ops/elementwise/right_shift",
        "ops/elementwise/floor_divide_whole",
        "ops/elementwise/remainder_whole",
    ),
)
CASES += [
    (kernel, {**choices, "y": f"formats/store/{kind}"})
    for kernel in OF_INTEGERS
    for kind, choices in INTEGERS.items()
]
CASES += [
    (
        "ops/elementwise/compare",
        {**choices, "key": f"lib/key/{kind}", "Out": "u32", "y": "formats/store/bool"},
    )
    for kind, choices in INTEGERS.items()
]
CASES += [
    (kernel, {"Value": "i32", "FLOAT": False, "x": "formats/load/i32", "y": "formats/store/i32"})
    for kernel in (
        "ops/elementwise/neg",
        "ops/elementwise/abs",
        "ops/elementwise/sign",
        "ops/elementwise/sqr",
        "ops/elementwise/bitwise_not",
    )
]
CASES += [
    (
        "ops/shape/cast",
        {"Out": kind, "convert": f"formats/convert/{kind}", "y": f"formats/store/{kind}"},
    )
    for kind in ("i32", "u32")
]
CASES += [
    ("ops/shape/contiguous", {"x": f"formats/bits_load/{w}", "y": f"formats/bits_store4/{w}"})
    for w in ("byte", "half", "wide")
]
CASES += [
    ("ops/shape/contiguous", {"x": "=y", "y": f"formats/bits_store4/{w}"})
    for w in ("byte", "half", "wide")
]
CASES += [
    (
        "ops/attention/attention",
        {**PREPARED, "k": f"lib/attention/cache_{k}", "v": f"lib/attention/cache_{v}"},
    )
    for k, v in (("f16", "f32"), ("f32", "f16"))
]
CASES += [
    (
        "ops/attention/attention",
        {**PREPARED, "k": "lib/attention/cache_f16", "v": "lib/attention/cache_f16", **NORMED},
    )
]


def label(case):
    """Name of a case, which does not compose the shader."""
    kernel, choices = case
    return f"{kernel}({', '.join(f'{name}={value}' for name, value in choices.items())})"


@pytest.mark.parametrize("case", CASES, ids=label)
def test_a_shader_is_valid_within_the_default_limits(executors, case):
    shader = load(*case, trusted=True)
    text = blank_comments(shader.text)
    storage = [b for b in shader.bindings if b.access != "uniform"]
    more = MORE_BINDINGS.get(case[1].get("prologue", ""), 0)
    assert len(storage) <= BASELINE_BINDINGS + more
    assert variable_nbytes(text).workgroup <= BASELINE_WORKGROUP_NBYTES
    wants_more = "subgroup" in text or text.startswith("enable f16;") or more
    gpu = executors("full" if wants_more else "baseline")
    if "subgroup" in text and not gpu.capabilities.subgroups:
        return  # chosen where the device has them; every op has a kernel without
    if text.startswith("enable f16;") and not gpu.capabilities.f16:
        return  # likewise
    gpu.device._pipelines._module(shader)  # without the driver's compiler, which takes a second


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_driver_compiles_a_kernel(gpu, kernel):
    choices = next(iter(variants(kernel)))
    shader = load(kernel, choices, trusted=True)
    missing = "subgroup" in blank_comments(shader.text) and not gpu.capabilities.subgroups
    missing |= shader.text.startswith("enable f16;") and not gpu.capabilities.f16
    missing |= "u64" in blank_comments(shader.text) and not gpu.capabilities.int64
    storage = [b for b in shader.bindings if b.access != "uniform"]
    if not missing and len(storage) <= gpu.capabilities.max_storage_bindings:
        assert gpu.device.pipeline(shader).shader.text == shader.text


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_shader_begins_by_saying_what_it_computes(kernel):
    first = read(kernel).splitlines()[0]
    assert re.match(r"// \S.{10,}", first)


def test_packed_bytes_have_a_name_before_more_is_done_with_them():
    """For D3D12 naga writes no brackets around them: of four bytes, only the last is shifted."""
    alone = re.compile(r"(?:= |return )pack4x[IU]8\((?!.*\bpack4x).*\);$")
    for path in FOLDER.rglob("*.wgsl"):
        for line in blank_comments(path.read_text(encoding="utf-8")).splitlines():
            assert not re.search(r"\bpack4x", line) or alone.search(line), f"{path.name}: {line}"


def test_every_shader_is_launched_by_something():
    folder = FOLDER.parent / "wgpu_backend"
    sources = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    used = {REGISTRY[name].shader for name in OPS}
    ends = [(k, k.rpartition("/")[2]) for k in KERNELS if k.removesuffix("_whole") not in used]
    assert [k for k, end in ends if not re.search(rf'["/]{end}"', sources)] == []


MADE_AS_NEEDED = ("chain", "norm_chain", "fft_pass")  # WGSL that the op writes itself


@pytest.mark.parametrize("name", OPS)
def test_an_op_has_a_reference_shader_and_docstring(name):
    op = REGISTRY[name]
    assert op.shader in {*KERNELS, *ON_DAWN} or name in MADE_AS_NEEDED
    assert re.match(r"[A-Z].*[.:]", inspect.getdoc(op) or "")
    parameters = inspect.signature(op.record).parameters
    assert list(inspect.signature(get_reference(name)).parameters) == list(parameters)


def test_snippets_of_a_folder_offer_the_same_functions():
    for folder in ("load", "store", "dequant", "vec4", "bits_load", "bits_store4", "bits_store"):
        offered = {}
        for path in (FOLDER / "formats" / folder).glob("*.wgsl"):
            text = path.read_text(encoding="utf-8")
            names = {"buf_load", "buf_load4", "buf_gather4", "buf_store4", "buf_load32", "buf_put"}
            offered[path.stem] = names & set(re.findall(r"fn (\w+)\(", text))
        assert len({frozenset(names) for names in offered.values()}) == 1, f"{folder}: {offered}"


def test_the_device_may_choose_the_work_groups_of_each_shader():
    """Of another number of threads than the grid counts with, they would reach a part."""
    for path in sorted(FOLDER.rglob("*.wgsl")):
        text = path.read_text("utf-8")
        if path.name != "lanes.wgsl" and "@compute" in text:  # that finds out what a device has
            assert re.search(r"@workgroup_size\(WG\)", text), path
