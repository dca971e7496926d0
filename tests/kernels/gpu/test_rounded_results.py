"""Products of few columns whose results leave rounded, in one dispatch with what rounds them."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from tests.ops.fused import ran
from tests.ops.operands import tensor, weight, weight_bytes
from wgpu_backend.dtypes import F16, IQ4_NL, MXFP4, Q4_0, Q4_K, Q5_1, Q6_K, Q8_0
from wgpu_backend.errors import DeviceError
from wgpu_backend.kernels.gpu import matvec
from wgpu_backend.kernels.gpu.matvec import COLUMNS
from wgpu_backend.kernels.gpu.rows import f16_activations
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT
from wgpu_backend.ops.linear.attributes import Epilogue, Prologue
from wgpu_backend.ops.linear.f16_groups import NIBBLES
from wgpu_backend.ops.linear.f16_groups import f16_values as decoded_f16
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.q8 import q8_activations
from wgpu_backend.ops.linear.q8_rounding import q8_values as decoded_q8
from wgpu_backend.ops.linear.q16 import q16_activations
from wgpu_backend.ops.linear.q16 import q16_values as decoded_q16
from wgpu_backend.testing import nmse

# A value between two quants may be rounded to either; one of 32 that is costs some 5e-5.
ROUNDING = 2e-4
EPS = 0.1
SILU = Epilogue("silu", form="q8", planar=True)
SUMS = Epilogue(form="q8", planar=True)
NORM = Epilogue(norm=True, form="q8", planar=True)
# Of what is rounded, and of sums.
LIMITS = {"q8": (ROUNDING, 1e-9), "q16": (1e-8, 1e-9)}
LACKING = {
    "subgroups of eight": {"lanes": 4},
    "subgroups": {"subgroups": False},
    "memory": {"subgroups": False, "max_workgroup_nbytes": 16384},
    "threads": {"max_workgroup_invocations": 128},
}


@pytest.fixture
def wide(executors):
    return executors("wide")


@pytest.fixture(params=["subgroups", "memory"])
def hardware(request, wide):
    """An executor that takes the kernels for hardware, of devices with subgroups and without."""
    if request.param == "subgroups":
        return wide
    return wide.as_if(dataclasses.replace(wide.capabilities, subgroups=False))


class Case:
    """A product of rounded rows whose results are rounded."""

    def __init__(self, rng, dtype, m, n, k, epilogue, eps=None):
        self.dtype, self.m, self.epilogue, self.eps = dtype, m, epilogue, eps
        self.shape = 2 * m if epilogue.activation else m, k
        self.data = weight_bytes(rng, *self.shape, dtype, k**-0.5)
        self.x = rng.standard_normal((n, k), "f4")
        self.addend, self.scale = rng.standard_normal((n, m), "f4"), rng.standard_normal(m, "f4")

    def rows(self, ctx):
        x = tensor(ctx, self.x)
        if self.epilogue.form == "q8":
            return q8_activations(x, planar=True), "q8"
        if self.epilogue.form == "q16":
            return q16_activations(x), "q16"
        nibbles = self.dtype in NIBBLES
        rows = f16_activations(x, planar=self.dtype != F16, nibbles=nibbles)
        return rows, "f16_nibbles" if nibbles else "f16"

    def results(self, executor):
        """What is rounded, and the sums that a norm leaves."""
        with Context(executor) as ctx:
            rows, form = self.rows(ctx)
            total = ctx.zeros(len(self.x), self.m)
            terms = tensor(ctx, self.addend), tensor(ctx, self.scale), total
            made = linear(
                weight(ctx._executor, *self.shape, self.dtype, self.data),
                rows,
                *(terms if self.epilogue.norm else ()),
                prologue=Prologue(form, self.eps),
                epilogue=self.epilogue,
            )
            return made.numpy(), total.numpy()

    def decoded(self, words):
        if self.epilogue.form == "q8":
            return decoded_q8(words)
        if self.epilogue.form == "q16":
            return decoded_q16(words)
        return decoded_f16(words, self.epilogue.form == "f16_nibbles")

    def check(self, executor):
        """The groups, their squares and the sums are NumPy's."""
        (got, total), (want, exact) = self.results(executor), self.results(NumpyExecutor())
        assert got.shape == want.shape
        limit, of_sums = LIMITS.get(self.epilogue.form, (1e-5, 1e-5))
        assert nmse(self.decoded(got), self.decoded(want)) <= limit
        assert nmse(squares(got), squares(want)) <= of_sums
        if self.epilogue.norm:
            assert nmse(total, exact) <= of_sums


def squares(words):
    """The last word of each group."""
    width = words.shape[-1]
    last = words[-1, ..., 3] if width == 4 else words[..., width - 1]
    return np.ascontiguousarray(last).view("f4")


@pytest.mark.parametrize(
    ("dtype", "m", "n", "k", "epilogue"),
    [
        (Q4_0, 96, 1, 2080, SILU),
        (Q4_0, 32, 3, 32, SUMS),
        (Q8_0, 64, 3, 544, replace(SILU, activation="gelu")),
        (Q5_1, 32, 8, 256, SUMS),
        (Q4_K, 32, 9, 256, SILU),
        (IQ4_NL, 64, 2, 256, SUMS),
        (MXFP4, 32, 1, 256, replace(SILU, planar=False)),
    ],
    ids=str,
)
def test_results_in_eight_bits(hardware, rng, dtype, m, n, k, epilogue):
    Case(rng, dtype, m, n, k, epilogue).check(hardware)


@pytest.mark.parametrize(
    ("dtype", "n", "k", "eps"), [(Q4_0, 1, 2080, EPS), (Q6_K, COLUMNS, 256, None)], ids=str
)
def test_sums_leave_twice(hardware, rng, dtype, n, k, eps):
    Case(rng, dtype, 96, n, k, NORM, eps).check(hardware)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "n", "epilogue"),
    [
        (Q4_0, 1, replace(NORM, form="f16_nibbles")),
        (Q8_0, 3, replace(SILU, form="f16")),
        (Q6_K, COLUMNS, replace(NORM, form="f16")),
        (F16, 1, Epilogue("relu", form="f16")),
        (F16, 5, Epilogue(norm=True, form="f16_nibbles", planar=True)),
    ],
    ids=str,
)
def test_results_in_f16(hardware, rng, dtype, n, epilogue):
    Case(rng, dtype, 64, n, 288 if dtype != Q6_K else 256, epilogue, EPS).check(hardware)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [Q8_0, Q6_K], ids=str)
def test_large_results_in_f16_take_fewer_lanes(hardware, rng, monkeypatch, dtype):
    monkeypatch.setattr(matvec, "FILLING_IN_F16", 64)
    Case(rng, dtype, 64, 1, 2048, replace(NORM, form="f16"), EPS).check(hardware)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "n", "epilogue"),
    [
        (Q4_0, 1, replace(NORM, form="q16")),
        (Q8_0, 3, replace(SILU, form="q16")),
        (Q6_K, COLUMNS, replace(NORM, form="q16")),
    ],
    ids=str,
)
def test_results_in_sixteen_bits(hardware, rng, dtype, n, epilogue):
    Case(rng, dtype, 64, n, 288 if dtype != Q6_K else 256, epilogue, EPS).check(hardware)


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("form", ["q8", "f16_nibbles"])
def test_devices_that_lack_something(wide, rng, lacking, form):
    device = wide.as_if(dataclasses.replace(wide.capabilities, **LACKING[lacking]))
    Case(rng, Q4_0, 64, 8, 544, replace(SILU, form=form), EPS).check(device)


@pytest.mark.parametrize("value", [np.inf, 1e30, 1e-30, 0.0])
@pytest.mark.parametrize("form", ["q8", "f16_nibbles"])
def test_sums_of_any_magnitude(wide, rng, form, value):
    case = Case(rng, Q4_0, 64, 3, 256, replace(NORM, form=form))
    with np.errstate(invalid="ignore", over="ignore"):
        case.addend = case.addend * np.float32(value)
        (got, total), (want, exact) = case.results(wide), case.results(NumpyExecutor())
    np.testing.assert_allclose(total, exact, rtol=1e-2, atol=1e-4 if form == "q8" else 1e-2)
    nan = [np.isnan(case.decoded(words)) for words in (got, want)]
    np.testing.assert_array_equal(*nan)
    assert nan[0].any() == np.isinf(value)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_row_that_is_not_finite_spoils_its_groups_alone(wide, rng, bad):
    case = Case(rng, Q4_0, 64, 5, 256, SILU)
    case.x[2, 40] = bad
    values = case.decoded(case.results(wide)[0])
    assert np.isnan(values[2]).all()
    assert np.isfinite(np.delete(values, 2, axis=0)).all()


def test_gates_that_are_shut_give_groups_of_zeros(wide, rng):
    case = Case(rng, Q8_0, 32, 1, 64, replace(SILU, activation="relu"))
    case.x[:] = 0
    assert not case.results(wide)[0].any()


def test_what_a_device_lacks_is_refused(wide, rng):
    few = wide.as_if(dataclasses.replace(wide.capabilities, max_storage_bindings=8))
    Case(rng, Q4_0, 32, 1, 64, NORM).check(few)
    with pytest.raises(DeviceError, match=r"9 storage buffers, the device binds 8; make the norm"):
        Case(rng, Q6_K, 32, 1, 256, NORM).results(few)
    plain = wide.as_if(dataclasses.replace(wide.capabilities, f16=False))
    with pytest.raises(DeviceError, match="has no kernel"):
        Case(rng, F16, 32, 1, 64, replace(NORM, form="f16")).results(plain)


def test_small_work_groups_leave_it_to_the_portable_kernel(wide, monkeypatch, rng):
    """And rules do not: it is slower than two ops."""
    poor = wide.as_if(
        dataclasses.replace(wide.capabilities, max_workgroup_invocations=64, rounded=EVERY_PRODUCT)
    )
    Case(rng, Q4_0, 32, 1, 64, NORM).check(poor)
    names = layer_of(poor, monkeypatch, Layer(rng, Q4_0), rng, 1, IN_BYTES, None, 1e-3)
    assert not any("to_q8" in name for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "most", "sums"), [(Q4_0, 8, 2), (Q6_K, 8, 0), (Q6_K, 9, 2)])
def test_sums_leave_twice_where_buffers_suffice(wide, monkeypatch, rng, dtype, most, sums):
    known = dataclasses.replace(wide.capabilities, max_storage_bindings=most, rounded=EVERY_PRODUCT)
    layer = Layer(rng, dtype, 256, 256)
    names = layer_of(wide.as_if(known), monkeypatch, layer, rng, 1, IN_BYTES, None, 2e-3)
    assert sum("to_norm" in name for name in names) == sums


class Layer:
    """Two residual products, each before a norm, with a gated one between them: half a decoder."""

    def __init__(self, rng, dtype, hidden=64, inner=96):
        self.hidden, self.inner, self.dtype = hidden, inner, dtype
        sizes = (hidden, hidden), (2 * inner, hidden), (hidden, inner), (40, hidden)
        self.weights = [(s, weight_bytes(rng, *s, dtype, s[1] ** -0.5)) for s in sizes]
        self.norms = rng.standard_normal((2, hidden), "f4")

    def __call__(self, ctx, x):
        out, wide, down, last = (
            weight(ctx._executor, *shape, self.dtype, data) for shape, data in self.weights
        )
        x = tensor(ctx, x)
        first, second = (tensor(ctx, norm) for norm in self.norms)
        y = out.linear(x, x)
        normed = y.rms_norm(first, eps=EPS)
        gate, up = wide.slice(0, 0, self.inner), wide.slice(0, self.inner, 2 * self.inner)
        z = down.linear(gate.mulmat(normed).swiglu(up.mulmat(normed)), y)
        return [last.mulmat(z.rms_norm(second, eps=EPS)), z]


IN_BYTES = ("linear_q8", "linear_gated", "q8_weighted", "linear_gated_q8", "linear_add_q8")
IN_F16 = ("linear_f16_groups", "linear_gated", "f16_weighted", "linear_gated_f16", "linear_add_f16")

IN_Q16 = ("linear_q16", "linear_gated", "q16_weighted", "linear_gated_q16", "linear_add_q16")


@pytest.mark.parametrize("off", [None, "linear_gated_q8", "linear_add_q8"])
def test_a_layer_in_eight_bits_without_one_rule(wide, monkeypatch, rng, off):
    device = wide.as_if(dataclasses.replace(wide.capabilities, rounded=EVERY_PRODUCT))
    names = layer_of(device, monkeypatch, Layer(rng, Q4_0), rng, 3, IN_BYTES, off, 1e-3)
    if off is None:
        sums = "linear q8 add to_norm to_q8"
        assert names == ["q8_activations", sums, "linear q8 gated to_q8", sums, "linear q8"]


@pytest.mark.slow
@pytest.mark.parametrize("off", [None, "linear_gated_f16", "linear_add_f16"])
def test_a_layer_in_f16_without_one_rule(wide, monkeypatch, rng, off):
    known = dataclasses.replace(wide.capabilities, rounded=frozenset(), integer_dot=False)
    device = wide.as_if(known)
    names = layer_of(device, monkeypatch, Layer(rng, Q4_0), rng, 1, IN_F16, off, 1e-4)
    if off is None:
        sums = "linear f16_nibbles add to_norm to_f16_nibbles"
        gated = "linear f16_nibbles gated to_f16_nibbles"
        assert names == ["f16_activations", sums, gated, sums, "linear f16_nibbles"]


@pytest.mark.slow
@pytest.mark.parametrize("off", [None, "linear_gated_q16", "linear_add_q16"])
def test_a_layer_in_sixteen_bits_without_one_rule(wide, monkeypatch, rng, off):
    device = wide.as_if(dataclasses.replace(wide.capabilities, integer_dot=True))
    names = layer_of(device, monkeypatch, Layer(rng, Q4_0), rng, 1, IN_Q16, off, 1e-7)
    if off is None:
        sums = "linear q16 add to_norm to_q16"
        assert names == ["q16_activations", sums, "linear q16 gated to_q16", sums, "linear q16"]


def layer_of(device, monkeypatch, layer, rng, n, rules, off, limit):
    """Ops of a layer by rules but one, which must change no value."""
    x = rng.standard_normal((n, layer.hidden), "f4")
    used = [name for name in rules if name != off]
    names, got = ran(device, monkeypatch, used, lambda ctx: layer(ctx, x), exact=False)
    with Context(NumpyExecutor()) as ctx:
        want = [value.numpy() for value in layer(ctx, x)]
    for value, exact in zip(got, want, strict=True):
        assert nmse(value, exact) < limit
    return names


@pytest.mark.slow
def test_results_of_many_columns_are_rounded_by_themselves(wide, monkeypatch, rng):
    device = wide.as_if(dataclasses.replace(wide.capabilities, rounded=EVERY_PRODUCT))
    layer = Layer(rng, Q4_0)
    names = layer_of(device, monkeypatch, layer, rng, COLUMNS + 1, IN_BYTES, None, 1e-3)
    assert not any("to_q8" in name for name in names)
