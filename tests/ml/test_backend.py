"""Backend and Context as a user meets them, on NumPy and on the adapter alike."""

import math
from pathlib import Path

import numpy as np
import pytest

import wgpu_backend
from tests.builders import WEIGHT_TYPES, dequantised, tiny_model
from wgpu_backend import (
    BackendError,
    BackendParams,
    Context,
    ContextError,
    DeviceError,
    DTypeError,
    ModelError,
    ShapeError,
    new_backend,
    register_backend,
)
from wgpu_backend.dtypes import BF16, F16, F32, I32, Q4_K, Q8_0, DType, named
from wgpu_backend.files.gguf.reader import GGUFFile, TensorInfo
from wgpu_backend.ml import backend as backends
from wgpu_backend.ml.backend import Backend, LoadCancelled
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.fused_weights import fused_groups
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor

KINDS = ["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("backend") / "tiny.gguf", dtype="q8_0")


def need_an_adapter(request: pytest.FixtureRequest, kind: str) -> None:
    if kind == "wgpu":
        request.getfixturevalue("full")  # skips where there is none


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, path: Path):
    need_an_adapter(request, request.param)
    with new_backend(path, name=request.param) as opened:
        yield opened


@pytest.fixture(scope="module", params=KINDS)
def executor(request: pytest.FixtureRequest) -> Executor:
    if request.param == "wgpu":
        return request.getfixturevalue("full")
    return NumpyExecutor()


@pytest.fixture
def context(executor: Executor):
    with Context(executor) as opened:
        yield opened


def live_nbytes(executor: Executor) -> int:
    """Bytes of tensors that the executor holds."""
    if isinstance(executor, WgpuExecutor):
        return executor.device.memory_report().nbytes
    assert isinstance(executor, NumpyExecutor)
    return sum(executor._nbytes.values())


# Loading.


def test_progress_rises_to_one(backend: Backend):
    shares: list[float] = []
    backend.load(progress=shares.append)
    assert len(shares) == len(backend.file.tensors)
    assert shares == sorted(shares)
    assert shares[0] > 0
    assert shares[-1] == 1.0


def test_loading_again_uploads_nothing(backend: Backend):
    backend.load()
    before = live_nbytes(backend.executor)
    first = dict(backend.weights)
    backend.load()
    assert live_nbytes(backend.executor) == before
    assert dict(backend.weights) == first


def test_cancelling_stops_between_tensors_and_closing_frees_all(backend: Backend):
    asked = iter([False, False, False, True])
    with pytest.raises(LoadCancelled, match=r"tiny\.gguf: loading was cancelled at blk\.0"):
        backend.load(cancelled=lambda: next(asked))
    assert len(backend.weights) == 3
    backend.close()
    assert live_nbytes(backend.executor) == 0


def test_a_cancelled_load_goes_on_where_it_stopped(backend: Backend):
    asked = iter([False, True])
    with pytest.raises(LoadCancelled):
        backend.load(cancelled=lambda: next(asked))
    first = dict(backend.weights)
    backend.load()
    assert len(backend.weights) == len(backend.file.tensors)
    assert first.items() <= dict(backend.weights).items()


def test_a_cancelled_model_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch):
    closed: list[Path] = []
    close = Backend.close

    def noted(self: Backend) -> None:
        closed.append(self.file.path)
        close(self)

    monkeypatch.setattr(Backend, "close", noted)
    with pytest.raises(LoadCancelled):
        wgpu_backend.load(path, device="cpu", cancelled=lambda: True)
    assert closed == [path]


def test_backends_have_the_config_and_name_their_device(backend: Backend):
    assert backend.config.architecture == "llama"
    assert backend.config.uint("block_count") == 2
    assert backend.backend_devices() == [backend.device]
    assert backend.device == backend.executor.info


def test_closing_twice_is_harmless(backend: Backend):
    backend.load()
    backend.close()
    backend.close()
    assert not backend.weights


def test_the_memory_report_tells_weights_apart(backend: Backend):
    before = live_nbytes(backend.executor)
    backend.load()
    assert live_nbytes(backend.executor) - before >= sum(
        t.nbytes for t in backend.file.tensors.values()
    )
    [line] = [x for x in backend.memory_report().splitlines() if x.startswith("weights")]
    assert any(c in "123456789" for c in line)


# Kinds of backends.


def test_an_unknown_kind_lists_the_known_ones(path: Path):
    with pytest.raises(BackendError, match=r"backend 'cuda': unknown, needs one of cpu, .*wgpu"):
        new_backend(path, name="cuda")


def test_a_kind_of_ones_own_is_registered_once(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backends, "_BACKENDS", dict(backends._BACKENDS))
    given: list[BackendParams] = []

    def make(params: BackendParams) -> Executor:
        given.append(params)
        return NumpyExecutor()

    register_backend("mine", make)
    params = BackendParams(profile="baseline")
    with new_backend(path, params, name="mine") as opened:
        opened.load()
    assert given == [params]
    with pytest.raises(ValueError, match="backend mine: already registered"):
        register_backend("mine", make)


def test_a_device_that_is_not_there_closes_the_file(path: Path, monkeypatch: pytest.MonkeyPatch):
    closed: list[Path] = []
    close = GGUFFile.close
    monkeypatch.setattr(GGUFFile, "close", lambda file: (closed.append(file.path), close(file)))
    with pytest.raises(DeviceError, match=r"device 'no such': no such device, there are .*cpu"):
        new_backend(path, BackendParams("no such"))
    assert closed == [path]


# Weights.


def test_weights_are_found_by_name(backend: Backend):
    backend.load()
    found = backend.get("blk.1.attn_q.weight")
    assert found is not None
    assert found is backend.weights["blk.1.attn_q.weight"]
    assert (found.shape, found.dtype) == ((64, 64), Q8_0)
    assert backend.require("blk.1.attn_q.weight") is found


def test_a_weight_that_is_missing_is_none_or_an_error(backend: Backend):
    assert backend.get("token_embd.weight") is None  # not loaded yet
    backend.load()
    assert backend.get("blk.2.attn_q.weight") is None
    with pytest.raises(ModelError, match=r"tiny\.gguf: tensor blk\.2\.attn_q\.weight is missing"):
        backend.require("blk.2.attn_q.weight")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", WEIGHT_TYPES)
def test_weights_come_back_dequantised(request, tmp_path, dtype, kind):
    need_an_adapter(request, kind)
    file = tiny_model(tmp_path / "model.gguf", dtype=dtype)
    with new_backend(file, name=kind) as opened, opened.new_context() as context:
        opened.load()
        for name, wanted in dequantised(file).items():
            got = context.values(opened.require(name))
            assert got.shape == wanted.shape
            np.testing.assert_array_equal(got, wanted, err_msg=name)


def test_a_weight_adopts_the_context_of_the_other_operand(backend: Backend, rng):
    backend.load()
    weight = backend.require("blk.0.ffn_up.weight")
    x = rng.standard_normal((3, 64), "f4")
    with backend.new_context() as context:
        wanted = x @ context.values(weight).T
        np.testing.assert_allclose(
            weight.mulmat(context.from_numpy(x)).numpy(), wanted, rtol=1e-4, atol=1e-5
        )


def test_a_weight_alone_belongs_to_no_context(backend: Backend):
    backend.load()
    weight = backend.require("token_embd.weight")
    with pytest.raises(ContextError, match=r"token_embd\.weight: a weight belongs to no context"):
        _ = weight.context
    with pytest.raises(ContextError, match="no tensor of a context among its operands"):
        weight.softmax()


# Contexts.


def test_a_closed_context_makes_and_computes_nothing(executor: Executor):
    context = Context(executor)
    x = context.from_numpy([1.0])
    y = x + 1
    context.close()
    context.close()
    for act in (
        lambda: context.from_numpy([1.0]),
        lambda: context.zeros(2),
        lambda: context.input("x", (1,)),
        lambda: context.from_bytes(Q8_0, bytes(34), 1, 32),
        lambda: context.compute(y),
        lambda: context.record(y),
        lambda: x + x,
        y.numpy,
    ):
        with pytest.raises(ContextError, match="context: it is closed; make a new one"):
            act()


def test_tensors_of_two_contexts_do_not_meet(executor: Executor):
    with Context(executor) as one, Context(executor) as other:
        a, b = one.from_numpy([1.0]), other.from_numpy([2.0])
        with pytest.raises(ContextError, match="add: tensors of two contexts; copy one over"):
            a + b
        assert (a + one.from_numpy(b.numpy())).numpy() == [3]


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [(F32, (2, 3), 23), (F16, (5,), 8), (Q8_0, (2, 64), 135), (Q4_K, (1, 256), 0)],
    ids=str,
)
def test_bytes_must_be_as_many_as_the_shape_needs(context: Context, dtype, shape, nbytes):
    needed = dtype.nbytes(int(np.prod(shape)))
    with pytest.raises(ShapeError, match=rf"from_bytes {dtype} .*: {nbytes} bytes.* {needed}$"):
        context.from_bytes(dtype, bytes(nbytes), *shape)


def test_half_a_block_is_refused(context: Context):
    with pytest.raises(DTypeError, match="q8_0: 33 elements, needs a multiple of 32"):
        context.from_bytes(Q8_0, bytes(35), 33)


@pytest.mark.parametrize("dtype", [F32, F16, BF16, I32], ids=str)
def test_bytes_come_back_as_they_were(context: Context, dtype):
    values = np.array([[0, 1, -2], [3, 100, -128]])
    data = values.astype("f4").view("u4") >> 16 if dtype == BF16 else values
    stored = data.astype(dtype.numpy).tobytes()
    np.testing.assert_array_equal(context.from_bytes(dtype, stored, 2, 3).numpy(), values)


def test_values_must_be_as_many_as_the_shape_holds(context: Context):
    with pytest.raises(ShapeError, match=r"from_floats: 3 values, shape \(2, 2\) holds 4"):
        context.from_floats([1, 2, 3], 2, 2)
    with pytest.raises(ShapeError, match=r"from_ints: 3 values, shape \(2,\) holds 2"):
        context.from_ints([1, 2, 3], 2)


def test_arrays_have_no_block_format(context: Context):
    with pytest.raises(DTypeError, match="from_numpy: q8_0 has no NumPy type"):
        context.from_numpy(np.ones(32), Q8_0)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [(np.ones(2, "f8"), "f32"), (np.ones(2, "u1"), "i32"), ([True, False], "bool"), (2, "i32")],
    ids=str,
)
def test_arrays_become_f32_i32_or_bool(context: Context, values, dtype):
    tensor = context.from_numpy(values)
    assert tensor.dtype == named(dtype)
    np.testing.assert_array_equal(tensor.numpy(), values)


def test_memory_goes_up_with_a_state_and_back(executor: Executor):
    before = live_nbytes(executor)
    with Context(executor) as context:
        context.zeros(1024, 1024)
        assert live_nbytes(executor) - before >= 4 << 20
    assert live_nbytes(executor) == before


def info(name: str, shape: tuple[int, ...], dtype: DType = F32, offset: int = 0) -> TensorInfo:
    return TensorInfo(name, dtype, shape, offset, dtype.nbytes(math.prod(shape)))


def runs(*infos: TensorInfo, limit: int = 1 << 20) -> list[str]:
    fused_weights = (("q", "k", "v"), ("gate", "up"))
    found = fused_groups({i.name: i for i in infos}, fused_weights, limit)
    return ["+".join(i.name for i in run) for run in found]


def test_weights_of_a_stack_come_together_in_its_order():
    assert runs(
        info("a.0.k.weight", (8, 32)),
        info("a.0.q.weight", (16, 32)),
        info("a.0.q.bias", (16,)),
        info("a.0.v.weight", (8, 32)),
        info("out.weight", (4, 32)),
        info("a.1.q.weight", (16, 32)),
        info("a.0.k.bias", (8,)),
        info("a.0.gate.weight", (6, 4, 32)),
        info("a.0.up.weight", (6, 4, 32)),
        info("a.1.gate.weight", (3, 4, 32)),
        info("a.1.up.weight", (3, 4, 32)),
    ) == [
        "a.0.q.weight+a.0.k.weight+a.0.v.weight",
        "a.0.q.bias+a.0.k.bias",
        "out.weight",
        "a.1.q.weight",
        "a.0.gate.weight+a.0.up.weight",
        "a.1.gate.weight",
        "a.1.up.weight",
    ]


@pytest.mark.parametrize(
    "other",
    [
        info("a.0.k.weight", (8, 64)),
        info("a.0.k.weight", (8, 32), F16),
    ],
    ids=["width", "type"],
)
def test_weights_that_do_not_match_stay_apart(other):
    assert len(runs(info("a.0.q.weight", (16, 32)), other)) == 2


def test_only_the_last_of_a_stack_has_odd_rows():
    q, k, v = (info(f"a.0.{n}.weight", (rows, 32)) for n, rows in (("q", 8), ("k", 9), ("v", 8)))
    assert runs(q, k, v) == ["a.0.q.weight+a.0.k.weight", "a.0.v.weight"]


def test_a_stack_is_no_larger_than_a_binding():
    pair = info("a.0.gate.weight", (8, 32)), info("a.0.up.weight", (8, 32))
    assert len(runs(*pair, limit=2048)) == 1
    assert len(runs(*pair, limit=2047)) == 2
