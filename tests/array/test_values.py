"""Arrays are values: no name changes with another; and the edges of types keep their numbers."""

import copy
import sys
import threading
from typing import Any

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.errors import DTypeError

pytestmark = pytest.mark.usefixtures("session")

SAME = {
    "astype": lambda x: x.astype(x.dtype),
    "astype function": lambda x: wx.astype(x, x.dtype, copy=False),
    "plus": lambda x: +x, "positive": wx.positive, "abs": wx.abs, "floor": wx.floor,
    "ceil": wx.ceil, "trunc": wx.trunc, "round": wx.round, "real": wx.real, "conj": wx.conj,
    "property": lambda x: x.real, "contiguous": wx.contiguous, "atleast_1d": wx.atleast_1d,
    "atleast_2d": lambda x: wx.atleast_2d(x)[0], "asarray": wx.asarray, "nan_to_num": wx.nan_to_num,
    "to_device": lambda x: x.to_device(x.session), "stop_gradient": wx.stop_gradient,
    "reshape": lambda x: x.reshape(x.shape), "clip": wx.clip, "diff": lambda x: wx.diff(x, n=0),
    "at": lambda x: x.at[0:0].add(1), "squeeze": wx.squeeze, "flatten": wx.flatten,
    "broadcast": lambda x: wx.broadcast_arrays(x)[0], "concat": lambda x: wx.concat([x]),
    "einsum": lambda x: wx.einsum("i->i", x), "copy": copy.copy, "Identity": nn.Identity(),
    "Dropout": nn.Dropout(0.5), "split": lambda x: wx.split(x, 1)[0], "from_dlpack": wx.from_dlpack,
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("dtype", [wx.uint8, wx.int32, wx.float32])
def test_assigning_to_a_result_leaves_the_operand_alone(name, dtype):
    x = wx.array([1, 2, 3], dtype=dtype)
    y: Any = SAME[name](x)
    y[0] = 9
    assert (x.tolist(), y.tolist()) == ([1, 2, 3], [9, 2, 3])
    x[1] = 7
    assert y.tolist() == [9, 2, 3]


@pytest.mark.parametrize("function", [wx.flip, lambda x: wx.roll(x, 1)])
def test_arrays_without_axes_are_values_too(function):
    x = wx.array(5)
    y = function(x)
    y[()] = 6
    assert (x.item(), y.item()) == (5, 6)


def test_a_compiled_function_tells_views_of_one_array_apart():
    values = np.arange(36, dtype="f4").reshape(6, 6)
    x = wx.array(values)
    double = wx.compile(lambda a: a * 2)
    for view in (x, x.T, x, x.T[::1]):
        np.testing.assert_array_equal(double(view).numpy(), view.numpy() * 2)
    part = wx.compile(lambda a: a + 1)
    for start in (0, 2, 4, 0):
        ours = part(x[start : start + 2]).numpy()
        np.testing.assert_array_equal(ours, values[start : start + 2] + 1)


def test_threads_make_and_compute_arrays_at_once():
    """The arrays that wait are listed while other threads make some."""
    failures: list[BaseException] = []
    stop = threading.Event()

    def make() -> None:
        while not stop.is_set():
            held = [wx.ones(3) + i for i in range(50)]
            del held[::2]

    def compute() -> None:
        try:
            for i in range(60):
                assert (wx.arange(4) + i).tolist() == list(range(i, i + 4))
                wx.live_arrays()
        except BaseException as error:
            failures.append(error)

    makers = [threading.Thread(target=make) for _ in range(2)]
    reader = threading.Thread(target=compute)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in [*makers, reader]:
            thread.start()
        reader.join()
    finally:
        stop.set()
        for thread in makers:
            thread.join()
        sys.setswitchinterval(interval)
    assert not failures, failures


@pytest.mark.parametrize("dtype", ["i1", "i4", "u2", "i8", "u8"])
@pytest.mark.parametrize("bounds", [(0.5, 2.5), (-0.5, None), (None, 1.5), (1, 3), (-1, 2)])
def test_clip_keeps_values_within_bounds_that_are_no_whole_numbers(dtype, bounds):
    if dtype in ("i8", "u8") and any(isinstance(b, float) for b in bounds):
        pytest.skip("float64 bounds of 64-bit integers round")
    x = np.array([0, 1, 3, 100], dtype)
    wanted = np.clip(x.astype("f8"), *bounds)
    np.testing.assert_array_equal(wx.clip(wx.array(x), *bounds).numpy(), wanted)


def test_clip_beyond_a_type_and_with_arrays():
    x = np.array([0, 100, 200], "u1")
    assert wx.clip(wx.array(x), -5, 300).tolist() == [0, 100, 200]
    assert wx.clip(wx.array(x), wx.array(0.5), wx.array([150.5] * 3)).tolist() == [0.5, 100, 150.5]
    assert wx.clip(wx.array(x), 1, 2).dtype == wx.uint8
    with pytest.raises(DTypeError, match="300"):
        wx.clip(wx.array(x), 300)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_median_is_not_a_number_where_a_value_is(dtype):
    x = np.array([[1, 2, np.nan], [3, 1, 2]], dtype)
    np.testing.assert_array_equal(wx.median(wx.array(x), axis=1).numpy(), [np.nan, 2])
    np.testing.assert_array_equal(wx.median(wx.array(x)).numpy(), np.nan)
    large = wx.median(wx.array([60000.0, 62016.0], dtype=wx.float16))
    assert large.item() == 60992


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"inclusive": False}])
def test_running_products_whose_blocks_overflow(dtype, options):
    """The product of 1,024 values overflows; the running product does not."""
    x = np.ones(3000, dtype)
    x[10:40], x[1500:1540], x[2500:2520] = 0.0625, 16, 0.0625
    row = (x[::-1] if options.get("reverse") else x).astype("f4")
    wanted = np.cumprod(row)
    assert np.isfinite(wanted).all()
    if options.get("inclusive") is False:
        wanted = np.append(np.float32(1), wanted[:-1])
    wanted = wanted[::-1] if options.get("reverse") else wanted
    ours = wx.cumprod(wx.array(np.stack([x, x])), 1, **options).numpy()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(ours, np.stack([wanted, wanted]).astype(dtype))


@pytest.mark.parametrize("dtype", [wx.int64, wx.uint64, wx.uint32, wx.int8, wx.float32])
def test_bools_of_python_beside_every_type(dtype):
    x = wx.array([5], dtype=dtype)
    for found, wanted in ((x + True, 6), (x * False, 0), (True + x, 6), (wx.maximum(x, True), 5)):
        assert (found.tolist(), found.dtype) == ([wanted], dtype)
    assert wx.array([True, False], dtype=dtype).tolist() == [1, 0]
    x[0] = True
    assert x.tolist() == [1]
    assert wx.where(wx.array([True]), x, False).tolist() == [1]


def test_whole_numbers_beyond_53_bits_stay_exact():
    values = [1, 2**53 + 1, 2**63 + 1, 2**64 - 1]
    x = wx.array(values, dtype=wx.uint64)
    assert x.tolist() == values
    assert wx.array([values], dtype=wx.uint64).tolist() == [values]
    assert (x == 2**64 - 1).tolist() == [False, False, False, True]
    assert wx.full((2,), 2**64 - 1, wx.uint64).tolist() == [2**64 - 1] * 2
    assert wx.minimum(x, 2**63).tolist() == [1, 2**53 + 1, 2**63, 2**63]
    x[0] = 2**63 + 3
    assert x.tolist()[0] == 2**63 + 3
    with pytest.raises(DTypeError):
        wx.array([-1, 2**64 - 1], dtype=wx.uint64)


def test_as_strided_counts_the_values_of_a_view(rng):
    values = rng.standard_normal((6, 8), dtype="f4")
    x = wx.array(values)
    views = [(x[:, ::2], values[:, ::2]), (x[::2], values[::2]), (x.T, values.T)]
    views += [(x[1:, 3:], values[1:, 3:]), (wx.full((12,), 2.0), np.full(12, 2, "f4"))]
    z = (values + 2j * values).astype("c8")
    views += [(wx.imag(wx.array(z)), z.imag), (wx.real(wx.array(z))[:, 1::2], z.real[:, 1::2])]
    for ours, theirs in views:
        flat = np.ascontiguousarray(theirs).reshape(-1)
        seen = np.lib.stride_tricks.as_strided(flat[1:], (3, 4), (8, 4))
        np.testing.assert_array_equal(wx.as_strided(ours, (3, 4), (2, 1), 1).numpy(), seen)


def test_one_row_is_drawn_from_as_mlx_draws():
    """Numbers that mlx 0.32.4 gives."""
    key, categorical = wx.random.key, wx.random.categorical
    drawn = [categorical(wx.zeros((1, 50)), key=key(s)).tolist() for s in range(6)]
    assert drawn == [[20], [5], [21], [43], [8], [31]]
    twelve = categorical(wx.zeros((1, 5)), num_samples=12, key=key(3))
    assert twelve.tolist() == [[4, 2, 4, 2, 3, 4, 3, 1, 1, 2, 0, 2]]
    assert categorical(wx.zeros((5,)), num_samples=2, key=key(3)).tolist() == [2, 2]
    assert categorical(wx.zeros((5, 1)), axis=0, shape=(2,), key=key(3)).tolist() == [2, 2]
    two = categorical(wx.zeros((2, 5)), num_samples=6, key=key(3))
    assert two.tolist() == [[0, 4, 1, 1, 1, 1], [1, 1, 2, 2, 1, 0]]
    assert categorical(wx.zeros((50,)), key=key(1)).item() == 36


def test_bfloat16_in_files_of_numpy(tmp_path):
    """Bytes that mlx 0.32.4 writes for [1.5, -2.5]; what is written here reads the same."""
    head = b"\x93NUMPY\x01\x00<\x00{'descr': '<V2', 'fortran_order': True, 'shape': (2, )}    \n"
    (tmp_path / "a.npy").write_bytes(head + bytes.fromhex("c03f20c0"))
    read = wx.load(tmp_path / "a.npy")
    assert (read.dtype, read.tolist()) == (wx.bfloat16, [1.5, -2.5])
    x = wx.array([[1.5, -2.5], [0.125, 3.0]], dtype=wx.bfloat16)
    wx.save(tmp_path / "b.npy", x.T)
    wx.savez(tmp_path / "c.npz", x=x, y=wx.ones(2))
    again, both = wx.load(tmp_path / "b.npy"), wx.load(tmp_path / "c.npz")
    assert (again.dtype, again.tolist()) == (wx.bfloat16, x.T.tolist())
    assert (both["x"].dtype, both["x"].tolist()) == (wx.bfloat16, x.tolist())
    assert both["y"].dtype == wx.float32
    assert np.load(tmp_path / "b.npy").dtype.itemsize == 2


def test_eye_takes_the_names_of_mlx_and_the_standard():
    assert wx.eye(2, m=3).tolist() == wx.eye(2, 3).tolist() == wx.eye(2, n_cols=3).tolist()
    assert wx.eye(2, m=3, k=1).tolist() == [[0, 1, 0], [0, 0, 1]]


LAYERS = {
    "RMSNorm": (lambda: nn.RMSNorm(8), (2, 3, 8)), "LayerNorm": (lambda: nn.LayerNorm(8), (2, 8)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 8), (2, 4, 8)),
    "GroupNorm of PyTorch": (lambda: nn.GroupNorm(2, 8, pytorch_compatible=True), (2, 4, 8)),
    "InstanceNorm": (lambda: nn.InstanceNorm(8, affine=True), (2, 4, 4, 8)),
    "BatchNorm": (lambda: nn.BatchNorm(8), (2, 8)), "Linear": (lambda: nn.Linear(8, 4), (3, 8)),
    "PReLU": (lambda: nn.PReLU(8), (3, 8)), "Conv1d": (lambda: nn.Conv1d(8, 4, 3), (2, 9, 8)),
    "Conv2d": (lambda: nn.Conv2d(8, 4, 3), (2, 5, 5, 8)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(8, 4, 3), (2, 9, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_as_it_is_made(name, rng):
    make, shape = LAYERS[name]
    x = wx.array(rng.standard_normal(shape, dtype="f4"))
    assert np.isfinite(make()(x).numpy()).all()


def test_weights_of_norms_may_be_views(rng):
    x = rng.standard_normal((3, 8), dtype="f4")
    scaled = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    row = wx.array(np.arange(16, dtype="f4"))
    for weight in (row[::2], row[::-1][:8], row.reshape(8, 2)[:, 1], row[3:11], wx.full((8,), 2.0)):
        norm = nn.RMSNorm(8)
        norm.weight = weight
        np.testing.assert_allclose(norm(wx.array(x)).numpy(), scaled * weight.numpy(), rtol=2e-5)
