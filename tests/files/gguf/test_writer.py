"""What is written is what is read, by our reader and by gguf-py's; and whole or not at all."""

import gguf
import numpy as np
import pytest

from wgpu_backend.dtypes import BF16, F32, Q8_0
from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.files.gguf.writer import OutgoingTensor, write_gguf

KEYS = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.small": -3,
    "llama.large": 2**40,
    "llama.eps": 0.5,
    "llama.flag": True,
    "llama.sizes": np.array([1, 2, 3], "<i4"),
    "llama.factors": np.array([0.25, 4.0], "<f4"),
    "llama.flags": np.array([True, False]),
    "tokenizer.ggml.tokens": ["a", "ü", "\udc80"],
}


def tensor(name, dtype, shape, nbytes, piece=7):
    data = np.arange(nbytes, dtype=np.uint8).tobytes()
    pieces = [data[at : at + piece] for at in range(0, nbytes, piece)]
    return OutgoingTensor(name, dtype, shape, lambda: pieces), data


def test_keys_and_tensors_come_back(tmp_path):
    made = [
        tensor("a.weight", F32, (3,), 12),
        tensor("b.weight", Q8_0, (2, 64), 136),
        tensor("c.weight", BF16, (2, 1, 3), 12, piece=100),
    ]
    path = tmp_path / "x.gguf"
    shares = []
    write_gguf(path, KEYS, [outgoing for outgoing, _ in made], shares.append)
    with open_gguf(path) as file:
        assert list(file.metadata) == list(KEYS)
        for key, value in KEYS.items():
            np.testing.assert_array_equal(file.metadata[key], value)
        for outgoing, data in made:
            info = file.tensors[outgoing.name]
            assert (info.dtype, info.shape) == (outgoing.dtype, outgoing.shape)
            assert bytes(file.data(outgoing.name)) == data
    assert shares == sorted(shares)
    assert shares[-1] <= 1


def test_gguf_py_reads_the_same_types(tmp_path):
    write_gguf(tmp_path / "x.gguf", KEYS, [tensor("a.weight", F32, (3,), 12)[0]])
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    kinds = {key: reader.fields[key].types[-1].name for key in KEYS}
    assert list(kinds.values()) == [
        *("STRING", "UINT32", "INT32", "UINT64", "FLOAT32", "BOOL"),
        *("INT32", "FLOAT32", "BOOL", "STRING"),
    ]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"old")

    def broken():
        yield b"12"
        raise ModelError("the folder is gone")

    with pytest.raises(ModelError, match="the folder is gone"):
        write_gguf(path, {}, [OutgoingTensor("a", F32, (1,), broken)])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_pieces_that_are_too_few_are_told(tmp_path):
    short = OutgoingTensor("a", F32, (2,), lambda: [b"1234"])
    with pytest.raises(ModelError, match=r"tensor a: 4 bytes came, f32 of shape \(2,\) has 8"):
        write_gguf(tmp_path / "x.gguf", {}, [short])
    assert not list(tmp_path.iterdir())


def test_no_room_is_told_before_anything_is_written(tmp_path):
    huge = OutgoingTensor("a", F32, (1 << 60,), lambda: pytest.fail("was asked for bytes"))
    with pytest.raises(ModelError, match=r"needs \d+ bytes, the disk has room for \d+"):
        write_gguf(tmp_path / "x.gguf", {}, [huge])
    assert not list(tmp_path.iterdir())


def test_a_folder_or_device_is_no_place_for_a_file(tmp_path):
    with pytest.raises(GGUFError, match="a directory, needs a regular file"):
        write_gguf(tmp_path, {}, [])
    with pytest.raises(OSError, match=r"x\.gguf"):
        write_gguf(tmp_path / "nowhere" / "x.gguf", {}, [])
