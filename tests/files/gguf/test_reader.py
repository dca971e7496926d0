import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter

from tests.builders import WEIGHT_TYPES, Crafted, array, dequantised, key, tensor, text, tiny_model
from wgpu_backend import dtypes
from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.files.gguf.reader import open_gguf, parse_gguf

SCALARS = {
    GGUFValueType.UINT8: 255,
    GGUFValueType.INT8: -128,
    GGUFValueType.UINT16: 65_535,
    GGUFValueType.INT16: -32_768,
    GGUFValueType.UINT32: 2**32 - 1,
    GGUFValueType.INT32: -(2**31),
    GGUFValueType.FLOAT32: 0.15625,
    GGUFValueType.BOOL: True,
    GGUFValueType.STRING: "naïve 🦙",
    GGUFValueType.UINT64: 2**64 - 1,
    GGUFValueType.INT64: -(2**63),
    GGUFValueType.FLOAT64: 1e300,
}
ARRAYS = {
    GGUFValueType.UINT8: ([0, 255], "u1"),
    GGUFValueType.INT8: ([-128, 127], "i1"),
    GGUFValueType.UINT16: ([0, 65_535], "u2"),
    GGUFValueType.INT16: ([-32_768, 1], "i2"),
    GGUFValueType.UINT32: ([2**32 - 1], "u4"),
    GGUFValueType.INT32: ([-(2**31), 0, 7], "i4"),
    GGUFValueType.FLOAT32: ([0.5, -1.25, float("inf")], "f4"),
    GGUFValueType.BOOL: ([True, False, True], "?"),
    GGUFValueType.UINT64: ([2**64 - 1], "u8"),
    GGUFValueType.INT64: ([-(2**63), 2**63 - 1], "i8"),
    GGUFValueType.FLOAT64: ([1e300, -0.0], "f8"),
}
# gguf-py still has the f32 scale and sum that libggml's Q8_1 had at first.
SIZES = {**gguf.GGML_QUANT_SIZES, gguf.GGMLQuantizationType.Q8_1: (32, 36)}
ALL_TYPES = sorted(gguf.GGML_QUANT_SIZES)


def written(path, fill):
    """Let gguf-py write a file that `fill(writer)` describes."""
    writer = GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", SCALARS, ids=lambda kind: kind.name)
def test_scalar_values_come_back_exactly(tmp_path, kind):
    value = SCALARS[kind]
    path = written(tmp_path / "m.gguf", lambda w: w.add_key_value("test.key", value, kind))
    with open_gguf(path) as file:
        assert value == file.metadata["test.key"]
        assert type(value) is type(file.metadata["test.key"])


@pytest.mark.parametrize("kind", ARRAYS, ids=lambda kind: kind.name)
def test_number_arrays_come_back_exactly(tmp_path, kind):
    values, code = ARRAYS[kind]
    path = written(
        tmp_path / "m.gguf",
        lambda w: w.add_key_value("test.key", values, GGUFValueType.ARRAY, sub_type=kind),
    )
    with open_gguf(path) as file:
        read = file.metadata["test.key"]
    assert np.dtype(code) == read.dtype
    assert values == read.tolist()
    assert not read.flags.writeable


def test_string_arrays_come_back_exactly(tmp_path):
    words = ["", "a", "Ġthe", "日本語", "nul\0inside", "🦙" * 1000]
    path = written(tmp_path / "m.gguf", lambda w: w.add_array("test.key", words))
    with open_gguf(path) as file:
        assert words == file.metadata["test.key"]


def test_empty_arrays_are_read():
    keys = [key("numbers", 9, array(6, 0, b"")), key("words", 9, array(8, 0, b""))]
    file = parse_gguf(Crafted(keys=keys).encode())
    assert file.metadata["numbers"].tolist() == []
    assert file.metadata["words"] == []


def test_strings_may_end_with_the_file():
    keys = [key("words", 9, array(8, 3, text("") * 3))]
    assert parse_gguf(Crafted(keys=keys).encode()).metadata["words"] == ["", "", ""]


def test_tokens_that_are_no_text_keep_their_bytes_and_stay_apart():
    pieces = [b"\xe2\x96", b"\xe2\x97", b"ok"]
    payload = b"".join(text(piece) for piece in pieces)
    file = parse_gguf(Crafted(keys=[key("tokens", 9, array(8, 3, payload))]).encode())
    tokens = file.metadata["tokens"]
    assert pieces == [token.encode("utf-8", "surrogateescape") for token in tokens]
    assert len(set(tokens)) == 3


def test_text_for_people_can_always_be_printed():
    file = parse_gguf(Crafted(keys=[key("general.name", 8, text(b"a\xffb"))]).encode())
    assert file.metadata["general.name"] == "a\N{REPLACEMENT CHARACTER}b"


def test_any_byte_but_zero_is_true():
    keys = [key("flag", 7, b"\x37"), key("flags", 9, array(7, 3, b"\x00\x02\xff"))]
    file = parse_gguf(Crafted(keys=keys).encode())
    assert file.metadata["flag"] is True
    assert file.metadata["flags"].tolist() == [False, True, True]


def test_metadata_and_tensors_keep_the_order_of_the_file(tmp_path):
    def fill(writer):
        for name in ("z", "a", "m"):
            writer.add_uint32(name, 1)
            writer.add_tensor(name, np.ones(3, "f4"))

    with open_gguf(written(tmp_path / "m.gguf", fill)) as file:
        assert list(file.metadata) == ["general.architecture", "z", "a", "m"]
        assert list(file.tensors) == ["z", "a", "m"]


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_are_read(version):
    data = np.arange(6, dtype="<f4").tobytes()
    crafted = Crafted(
        version=version,
        keys=[key("general.architecture", 8, text("llama"))],
        tensors=[tensor("t", (3, 2), 0, 0)],
        data=data,
    )
    file = parse_gguf(crafted.encode(), "two.gguf")
    assert version == file.version
    assert file.tensors["t"].shape == (2, 3)
    assert data == bytes(file.data("t"))
    assert file.config.architecture == "llama"


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_every_type_of_the_format_has_its_size(kind):
    block, block_nbytes = SIZES[kind]
    data = np.random.default_rng(kind).bytes(6 * block_nbytes)
    crafted = Crafted(tensors=[tensor("t", (2 * block, 3), kind, 0)], data=data)
    file = parse_gguf(crafted.encode(), check_types=False)
    info = file.tensors["t"]
    assert (kind.name.lower(), block, block_nbytes) == (
        info.dtype.name, info.dtype.block, info.dtype.block_nbytes,
    )  # fmt: skip
    assert (3, 2 * block) == info.shape
    assert data == bytes(file.data("t"))


@pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.name)
def test_only_types_with_kernels_are_opened(kind):
    block, block_nbytes = SIZES[kind]
    crafted = Crafted(tensors=[tensor("t", (block,), kind, 0)], data=bytes(block_nbytes))
    if dtypes.from_ggml(kind) is not None:
        assert kind == parse_gguf(crafted.encode()).tensors["t"].dtype.ggml
    else:
        with pytest.raises(GGUFError, match=rf"'t': type {kind.name} \({kind}\) is not supported"):
            parse_gguf(crafted.encode())


@pytest.mark.parametrize("check_types", [True, False])
def test_a_type_that_nobody_knows_is_refused_in_any_case(check_types):
    crafted = Crafted(tensors=[tensor("t", (32,), 999, 0)], data=bytes(32))
    with pytest.raises(GGUFError, match=r"'t': type 999 is not supported; supported are f32, f16"):
        parse_gguf(crafted.encode(), check_types=check_types)


def test_tensors_hold_what_the_writer_was_given(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"t{rank}": rng.standard_normal((5, 3, 2, 7)[:rank], "f4") for rank in range(1, 5)}
    path = written(
        tmp_path / "m.gguf", lambda w: [w.add_tensor(name, a) for name, a in arrays.items()]
    )
    with open_gguf(path) as file:
        for name, expected in arrays.items():
            info = file.tensors[name]
            assert expected.shape == info.shape
            assert expected.nbytes == info.nbytes
            assert info.offset % file.alignment == 0
            read = np.frombuffer(file.data(name), "<f4").reshape(info.shape)
            np.testing.assert_array_equal(expected, read)
            del read


def test_a_scalar_tensor_has_no_dimensions():
    file = parse_gguf(Crafted(tensors=[tensor("t", (), 0, 0)], data=bytes(4)).encode())
    assert (file.tensors["t"].shape, file.tensors["t"].nbytes) == ((), 4)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_of_the_file_is_followed(tmp_path, alignment):
    def fill(writer):
        writer.add_custom_alignment(alignment)
        writer.add_tensor("a", np.full(1, 1, "f4"))
        writer.add_tensor("b", np.full(1, 2, "f4"))

    with open_gguf(written(tmp_path / "m.gguf", fill)) as file:
        assert alignment == file.alignment
        assert alignment == file.tensors["b"].offset - file.tensors["a"].offset
        assert np.full(1, 2, "<f4").tobytes() == bytes(file.data("b"))


def test_the_last_tensor_needs_no_padding():
    crafted = Crafted(tensors=[tensor("t", (3,), 0, 0)], data=bytes(12))
    assert parse_gguf(crafted.encode()).tensors["t"].nbytes == 12
    crafted.data = bytes(32)
    assert parse_gguf(crafted.encode()).tensors["t"].nbytes == 12


def test_gaps_between_tensors_are_allowed():
    crafted = Crafted(
        tensors=[tensor("a", (1,), 0, 32), tensor("b", (1,), 0, 96)],
        data=bytes(96) + struct.pack("<f", 5),
    )
    file = parse_gguf(crafted.encode())
    assert struct.pack("<f", 5) == bytes(file.data("b"))


def test_a_vocabulary_without_tensors_is_a_file():
    assert len(parse_gguf(Crafted().encode()).tensors) == 0


def test_data_is_read_only(tmp_path):
    with open_gguf(tiny_model(tmp_path / "m.gguf")) as file:
        assert file.data("output_norm.weight").readonly


def test_closing_twice_is_harmless(tmp_path):
    file = open_gguf(tiny_model(tmp_path / "m.gguf"))
    file.close()
    file.close()
    with pytest.raises(ModelError, match="closed"):
        file.data("output_norm.weight")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no list of open files here")
def test_closing_closes_the_file(tmp_path):
    path = tiny_model(tmp_path / "open.gguf")

    def is_open() -> bool:
        return any(path.samefile(fd) for fd in Path("/proc/self/fd").iterdir() if fd.exists())

    with open_gguf(path):
        assert is_open()
    assert not is_open()


def test_views_outlive_the_file(tmp_path):
    file = open_gguf(tiny_model(tmp_path / "m.gguf"))
    view = file.data("output_norm.weight")
    before = bytes(view)
    file.close()
    assert before == bytes(view)


def test_an_unknown_tensor_is_named(tmp_path):
    with (
        open_gguf(tiny_model(tmp_path / "m.gguf")) as file,
        pytest.raises(ModelError, match=r"m\.gguf: no tensor 'blk\.9\.x' among the 21"),
    ):
        file.data("blk.9.x")


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", WEIGHT_TYPES)
def test_tiny_models_open_in_every_weight_type(tmp_path, architecture, dtype):
    path = tiny_model(tmp_path / "m.gguf", architecture, dtype)
    with open_gguf(path) as file:
        assert architecture == file.config.architecture
        assert dtype == file.tensors["blk.0.attn_q.weight"].dtype.name
        assert file.tensors["blk.0.attn_norm.weight"].dtype is dtypes.F32
        assert file.config.uint("vocab_size") == len(file.config.strings("tokenizer.ggml.tokens"))
    weights = dequantised(path)
    matrix = weights["blk.0.ffn_down.weight"]
    assert all(np.isfinite(weight).all() for weight in weights.values())
    # Scales of random K-blocks are estimates, hence the width of the range.
    assert 0.8 < matrix.std() * matrix.shape[1] ** 0.5 < 1.25


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(GGUFError, match=r"gone\.gguf: no such file$"):
        open_gguf(tmp_path / "gone.gguf")


def test_an_empty_file(tmp_path):
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(GGUFError, match=r"empty\.gguf: 0 bytes"):
        open_gguf(tmp_path / "empty.gguf")


def test_a_file_that_may_not_be_read(tmp_path):
    path = tiny_model(tmp_path / "m.gguf")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(GGUFError, match=r"m\.gguf: Permission denied"):
        open_gguf(path)


def test_a_damaged_file_is_closed_again(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    for _ in range(3):
        with pytest.raises(GGUFError):
            open_gguf(path)
    path.unlink()
