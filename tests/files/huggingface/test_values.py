"""Tensors that are changed while they are read are what NumPy makes of whole ones."""

import numpy as np
import pytest

from tests.files.huggingface.folders import safetensors
from wgpu_backend.dtypes import MXFP4
from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface import transforms as a
from wgpu_backend.files.huggingface import values as v
from wgpu_backend.files.huggingface.safetensors import open_safetensors


def read_in_parts(x, rows):
    parts = [x.read(at, min(at + rows, x.rows)) for at in range(0, x.rows, rows)]
    return np.concatenate(parts).reshape(x.shape)


def interleaved(x, heads):
    """The permutation by its definition, a row at a time."""
    size = len(x) // heads
    made = np.empty_like(x)
    for head in range(heads):
        for i in range(size // 2):
            made[head * size + 2 * i] = x[head * size + i]
            made[head * size + 2 * i + 1] = x[head * size + size // 2 + i]
    return made


def apart(x, heads, kv_heads):
    """Queries, keys and values by their definition: a group has its heads' queries, key, value."""
    each = heads // kv_heads
    groups = x.reshape(kv_heads, each + 2, -1, x.shape[1])
    parts = (groups[:, :each], groups[:, each], groups[:, each + 1])
    return np.concatenate([part.reshape(-1, x.shape[1]) for part in parts])


CASES = {
    "pairs apart": (
        (24, 3),
        lambda x: a.split_pairs(x, 3, 4),
        lambda x: x.reshape(3, 8, 3)[:, [0, 2, 1, 3, 4, 5, 6, 7]].reshape(24, 3),
    ),
    "interleaved": ((24, 3), lambda x: a.interleave_halves(x, 3), lambda x: interleaved(x, 3)),
    "transposed": ((5, 33), a.transpose, lambda x: x.T),
    "transposed experts": ((3, 5, 4), a.transpose, lambda x: x.swapaxes(1, 2)),
    "even rows": ((3, 6, 5), lambda x: a.take_every_other(x, 0), lambda x: x[:, ::2]),
    "odd rows": (
        (1, 6),
        lambda x: a.take_every_other(a.as_columns(x), 1),
        lambda x: x[:, 1::2, None],
    ),
    "first halves": ((3, 6, 5), lambda x: a.take_half(x, 0), lambda x: x[:, :3]),
    "second halves": ((3, 6, 5), lambda x: a.take_half(x, 1), lambda x: x[:, 3:]),
    "later rows": ((7, 2), lambda x: a.drop_first(x, 3), lambda x: x[3:]),
    "three of each head": (
        (18, 3),
        lambda x: a.ungroup_qkv(x, 3, 3),
        lambda x: apart(x, 3, 3),
    ),
    "heads that share": (
        (32, 3),
        lambda x: a.ungroup_qkv(x, 12, 2),
        lambda x: apart(x, 12, 2),
    ),
    "rows of heads, turned": (
        (21, 4),
        lambda x: a.transpose(a.slice_rows(a.split_matrices(x, 3), 2, 7)),
        lambda x: x.reshape(3, 7, 4)[:, 2:].swapaxes(1, 2),
    ),
    "an axis less": ((5, 1, 4), lambda x: a.reshape(x, 5, 4), lambda x: x[:, 0]),
    "a row as groups": ((12,), lambda x: a.reshape(x, 3, 4), lambda x: x.reshape(3, 4)),
    "decays": (
        (3, 4),
        v.negative_exponentials,
        lambda x: -np.exp(x.astype("f8")).astype("f4"),
    ),
    "one more": ((33,), lambda x: v.plus(x, 1.0), lambda x: x + 1),
    "stacked": ((3, 4), lambda x: a.stack([x, v.plus(x, 1.0)]), lambda x: np.stack([x, x + 1])),
    "even of transposed": (
        (2, 3, 4),
        lambda x: a.take_every_other(a.transpose(x), 0),
        lambda x: x.swapaxes(1, 2)[:, ::2],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_changes_are_numpys_however_they_are_read(rng, name):
    shape, change, wanted = CASES[name]
    x = rng.standard_normal(shape, "f4")
    made = change(v.constant(x))
    for rows in (1, 2, 5, max(made.rows, 1)):
        np.testing.assert_array_equal(read_in_parts(made, rows), wanted(x))


def test_biases_are_moved_as_rows_are(rng):
    x = rng.standard_normal(24).astype("f4")
    made = a.flatten_columns(a.interleave_halves(a.as_columns(v.constant(x)), 3))
    np.testing.assert_array_equal(made.read(0, 1)[0], interleaved(x[:, None], 3)[:, 0])


@pytest.mark.parametrize(
    ("shape", "repeat"), [((1,), None), ((5, 1), None), ((3, 2), (2, 3)), ((), None)]
)
def test_scales_are_of_all_of_rows_or_of_blocks(rng, shape, repeat):
    x = rng.standard_normal((5, 6)).astype("f4")
    scales = np.asarray(rng.uniform(0.5, 2, shape), "f4")
    wide = np.kron(scales, np.ones(repeat, "f4"))[:5, :6] if repeat else scales
    made = v.apply_scales(v.constant(x), scales, (2, 3))
    np.testing.assert_array_equal(read_in_parts(made, 2), (x * wide).astype("f2"))


def test_packed_mxfp4_has_the_same_codes_in_gguf_order(tmp_path, rng):
    blocks = rng.integers(0, 256, (2, 3, 4, 16)).astype("u1")
    scales = rng.integers(0, 256, (2, 3, 4)).astype("u1")
    (tmp_path / "x").write_bytes(safetensors({"b": blocks, "s": scales}))
    file, found = open_safetensors(tmp_path / "x")
    made = v.packed_mxfp4(found["b"], found["s"])
    raw = np.concatenate([made.read(at, at + 1) for at in range(6)]).reshape(-1, 17)
    file.close()
    assert (made.shape, made.dtype) == ((2, 3, 128), MXFP4)
    np.testing.assert_array_equal(raw[:, 0], scales.reshape(-1))
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(-1, 32)
    np.testing.assert_array_equal(raw[:, 1:] & 15, codes[:, :16])
    np.testing.assert_array_equal(raw[:, 1:] >> 4, codes[:, 16:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: a.split_pairs(x, 5, 3), "has 5 rows, needs 3, an even number, in 5 heads"),
        (lambda x: a.interleave_halves(x, 2), "has 5 rows, needs an even number for each of 2"),
        (lambda x: a.ungroup_qkv(x, 3, 2), "has 5 rows, needs those of 3 heads and 2"),
        (lambda x: a.split_matrices(x, 2), r"of shape \(5, 6\), needs a multiple of 2 rows"),
        (lambda x: a.slice_rows(x, 2, 6), r"of shape \(5, 6\), needs rows 2 to 6"),
        (lambda x: a.reshape(x, 6, 5), r"of shape \(5, 6\), needs as many values as \(6, 5\)"),
        (lambda x: a.take_every_other(x, 0), r"of shape \(5, 6\), needs an even number of rows"),
        (
            lambda x: v.apply_scales(x, np.ones((2, 3), "f4"), (2, 3)),
            r"has scales of shape \(2, 3\)",
        ),
        (lambda x: a.stack([x, a.transpose(x)]), r"parts of f32 \(5, 6\) and of f32 \(6, 5\)"),
    ],
)
def test_shapes_that_do_not_fit_are_told(change, message):
    with pytest.raises(ModelError, match=message):
        change(v.constant(np.ones((5, 6), "f4")))
