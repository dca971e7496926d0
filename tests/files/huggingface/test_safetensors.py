"""Safetensors files are read as their format says; damage is reported in one line."""

import struct

import numpy as np
import pytest

from tests.files.huggingface.folders import crafted, safetensors
from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface.safetensors import open_safetensors
from wgpu_backend.files.huggingface.values import as_f32, read_values


def read(path, data):
    path.write_bytes(data)
    return open_safetensors(path)


def entry(begin=0, end=8, shape=(2,), kind="F32"):
    return {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}


def test_values_come_back(tmp_path, rng):
    tensors = {
        "a": rng.standard_normal((3, 5), "f4"),
        "b": rng.standard_normal(7).astype("f2"),
        "c": rng.integers(0, 0x7F00, (1, 1, 33)).astype("u2"),
    }
    file, found = read(tmp_path / "x.safetensors", safetensors(tensors))
    assert list(found) == ["a", "b", "c"]
    for name, values in tensors.items():
        made = read_values(found[name])
        np.testing.assert_array_equal(made.read(0, made.rows).reshape(made.shape), values)
    widened = as_f32(tensors["c"], read_values(found["c"]).dtype)
    np.testing.assert_array_equal(widened.view("u4") >> 16, tensors["c"])
    file.close()


@pytest.mark.parametrize(
    ("kind", "codes", "values"),
    [
        # Micikevicius et al. 2022, "FP8 Formats for Deep Learning", table 1.
        ("F8_E4M3", [0x00, 0x01, 0x08, 0x38, 0x7E, 0xB8], [0, 2**-9, 2**-6, 1, 448, -1]),
        ("F8_E5M2", [0x00, 0x01, 0x04, 0x3C, 0x7B, 0xBC], [0, 2**-16, 2**-14, 1, 57344, -1]),
    ],
)
def test_floats_of_eight_bits_are_exact(tmp_path, kind, codes, values):
    data = safetensors({"a": np.array([codes], "u1")}, {"a": kind})
    file, found = read(tmp_path / "x.safetensors", data)
    np.testing.assert_array_equal(read_values(found["a"]).read(0, 1)[0].astype("f8"), values)
    file.close()


def test_values_of_a_type_take_its_bytes(tmp_path):
    # The order of the format's own list of types.
    sizes = {
        1: ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"),
        2: ("I16", "U16", "F16", "BF16"),
        4: ("I32", "U32", "F32"),
        8: ("F64", "I64", "U64"),
    }
    for nbytes, kinds in sizes.items():
        for kind in kinds:
            data = crafted({"a": entry(0, 8 * nbytes, (8,), kind)}, bytes(8 * nbytes))
            file, found = read(tmp_path / "x.safetensors", data)
            assert (found["a"].kind, found["a"].shape) == (kind, (8,))
            file.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes, a safetensors file has at least 8"),
        (struct.pack("<Q", 1 << 60) + b"{}", "header of 1152921504606846976 bytes, 2 are left"),
        (crafted(b"{nothing"), "header: not JSON"),
        (crafted(b"[1]"), "not a JSON object"),
        (crafted(b"[" * 100_000), "header: not JSON"),
        (crafted({"a": 1}), "tensor 'a': is not a JSON object"),
        (crafted({"a": entry(kind="F7")}), "tensor 'a': dtype 'F7', needs one of BOOL"),
        (crafted({"a": entry(shape=(-2,))}), r"shape is \[-2\], needs a list of whole numbers"),
        (crafted({"a": entry(shape=(True,))}), r"shape is \[True\], needs a list of whole"),
        (crafted({"a": entry(shape=(3,))}, bytes(8)), r"hold 8 bytes, F32 of shape \[3\] has 12"),
        (crafted({"a": entry(shape=(2**40, 2**40))}), "data_offsets hold 8 bytes, F32 of shape"),
        (crafted({"a": entry(8, 0)}, bytes(8)), r"data_offsets \[8, 0\], needs a begin and an end"),
        (crafted({"a": entry()}, bytes(7)), r"ends at byte \d+, the file has \d+; it is truncated"),
        (crafted({"a": entry(), "b": entry()}, bytes(8)), r"'b': starts at byte \d+, what is be"),
        (crafted({"a": entry(8, 16)}, bytes(16)), r"'a': starts at byte \d+, what is before it"),
        (crafted({"a": entry()}, bytes(9)), r"tensors end at byte \d+, the file has \d+"),
        (crafted(b'{"a": 1, "a": 2}'), "key 'a' occurs twice"),
    ],
)
def test_damaged_files_are_told(tmp_path, data, message):
    with pytest.raises(ModelError, match=message) as told:
        read(tmp_path / "x.safetensors", data)
    assert str(told.value).startswith(str(tmp_path / "x.safetensors"))
    assert "\n" not in str(told.value)
