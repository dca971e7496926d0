"""Restored sequences continue like the saved ones; damaged states are refused in one line."""

import json
import struct
import zlib

import numpy as np
import pytest

from tests.builders import Dims, tiny_model
from tests.engine.test_forgetting import WINDOWS, Convolved, Windowed
from tests.models.recurrent_cases import recurrent
from wgpu_backend.errors import CacheFull
from wgpu_backend.llama import Batch, Context, Model, StateError
from wgpu_backend.llama.states import MAGIC

TOKENS = [1, 7, 3, 99, 200, 5, 5, 8] * 6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    dims = Dims(heads=2, head_dim=32)  # heads of whole blocks
    path = tiny_model(tmp_path_factory.mktemp("states") / "tiny.gguf", dims=dims)
    with Model(path, device="cpu") as model:
        yield model


@pytest.fixture
def context(model):
    with Context(model, n_ctx=192, n_seq_max=3) as context:
        context.decode(Batch.get_one(TOKENS))
        yield context


def following(context, sequence=0):
    context.decode(Batch.get_one([9], sequence))
    return context.get_logits_ith()


def repacked(data, change):
    """Bytes with another header, sound otherwise."""
    size = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[16 : 16 + size])
    change(header)
    text = json.dumps(header).encode()
    whole = data[:12] + struct.pack("<I", len(text)) + text + data[16 + size : -4]
    return whole + struct.pack("<I", zlib.crc32(whole))


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "q8_0", "q4_0"])
def test_a_restored_sequence_continues_like_the_saved_one(model, kv_dtype):
    with Context(model, n_ctx=192, n_seq_max=3, kv_dtype=kv_dtype) as context:
        context.decode(Batch.get_one(TOKENS))
        data = context.state_seq_get_data(0)
        expected = following(context)
        context.state_seq_set_data(data, 2)
        np.testing.assert_array_equal(following(context, 2), expected)


def test_files_keep_tokens_and_all_sequences(context, tmp_path):
    context.seq_cp(0, 2, 0, 20)
    context.state_save_file(tmp_path / "all", TOKENS)
    expected = following(context, 2)
    context.clear()
    assert context.state_load_file(tmp_path / "all") == TOKENS
    assert [context.seq_pos_max(s) for s in range(3)] == [47, -1, 19]
    np.testing.assert_array_equal(following(context, 2), expected)
    assert (
        context.state_seq_save_file(tmp_path / "one", 0, [4]) == (tmp_path / "one").stat().st_size
    )
    assert context.state_seq_load_file(tmp_path / "one", 1) == [4]
    assert [each.name for each in sorted(tmp_path.iterdir())] == ["all", "one"]


def test_a_shifted_sequence_is_saved_as_it_is(context):
    assert context.seq_rm(0, 3, 10)
    context.seq_add(0, 10, -1, -7)
    data = context.state_seq_get_data(0)
    expected = following(context)
    context.state_seq_set_data(data, 1)
    np.testing.assert_array_equal(following(context, 1), expected)


def test_any_damage_is_found_and_changes_nothing(context):
    data = context.state_get_data()
    rng = np.random.default_rng(5)
    for at in [*range(40), *rng.integers(0, len(data), 60)]:
        broken = bytearray(data)
        broken[at] ^= 1 << rng.integers(0, 8)
        with pytest.raises(StateError):
            context.state_set_data(bytes(broken))
    for end in [0, 7, 8, 16, 19, 20, 200, len(data) - 1]:
        with pytest.raises(StateError):
            context.state_set_data(data[:end])
    assert context.seq_pos_max(0) == len(TOKENS) - 1


def _set(*path, value):
    def change(header):
        for key in path[:-1]:
            header = header[key]
        header[path[-1]] = value

    return change


PART = ("sequences", 0, "parts", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("model", "width", value=65), "another model"),
        (_set("halves", value=[False]), "another model or type of cache"),
        (_set("cols", value=[[1]]), "another model or type of cache"),
        (_set("sequences", value={}), "needs a list"),
        (_set("sequences", value=[{}]), "lacks a field"),
        (_set("sequences", value=[7]), "lacks a field"),
        (_set("sequences", value=[]), "bytes follow"),
        (_set("sequences", 0, "id", value=3), "sequence 3, the context has 3"),
        (_set("sequences", 0, "id", value=-1), "needs a number from 0"),
        (_set("sequences", 0, "id", value=1e3), "needs a number from 0"),
        (_set("sequences", 0, "parts", value=[]), "0 parts, the cache has 1"),
        (_set(*PART, "length", value=20), "one block"),
        (_set(*PART, "length", value=True), "needs a number"),
        (_set(*PART, "runs", value=[[0, 32], [0, 16]]), "one block"),
        (_set(*PART, "runs", value=[[0, 48]]), "one block"),
        (_set(*PART, "runs", value=[[0, 1 << 30]]), "bytes, .* left"),
        (_set(*PART, "runs", value=[[5, 5]]), "a first and a later end"),
        (_set(*PART, "runs", value=[5]), "needs a list"),
        (_set("tokens", value=["a"]), "needs a number"),
        (_set("tokens", value=None), "needs a list"),
    ],
)
def test_a_hostile_header_is_refused_in_one_line(context, change, message):
    data = repacked(context.state_get_data(), change)
    with pytest.raises(StateError, match=message) as caught:
        context.state_set_data(data)
    assert "\n" not in str(caught.value)
    assert context.seq_pos_max(0) == len(TOKENS) - 1


def test_other_formats_and_versions_are_refused(context):
    with pytest.raises(StateError, match="begin with b'ggsn"):
        context.state_set_data(b"ggsn" + bytes(100))
    with pytest.raises(StateError, match="version 2, this program reads 1"):
        context.state_set_data(MAGIC + struct.pack("<II", 2, 0) + bytes(4))
    whole = MAGIC + struct.pack("<II", 1, 100_000) + b"[" * 100_000
    with pytest.raises(StateError, match="JSON"):
        context.state_set_data(whole + struct.pack("<I", zlib.crc32(whole)))


def test_another_models_state_is_refused(model, context, tmp_path):
    other = tiny_model(tmp_path / "other.gguf", dims=Dims(layers=3))
    data = context.state_get_data()
    with Model(other, device="cpu") as wider, Context(wider) as its:
        with pytest.raises(StateError, match="another model"):
            its.state_set_data(data)
        its.clear()


def test_a_state_without_room_leaves_the_context_empty(model, context):
    data = context.state_get_data()
    with Context(model, n_ctx=32) as small:
        with pytest.raises(CacheFull, match="48 positions, the context holds 32"):
            small.state_seq_set_data(data, 0)
        small.decode(Batch.get_one([1]))


@pytest.mark.parametrize("kind", [Windowed, Convolved])
def test_caches_that_forget_are_restored(tmp_path, kind):
    path = tiny_model(tmp_path / "tiny.gguf", dims=Dims(layers=len(WINDOWS)))
    with Model(path, device="cpu") as model:
        model.language.model = kind(model.language.backend)
        with Context(model, n_ctx=256, n_seq_max=2) as context:
            context.decode(Batch.get_one([3, 5, 7, 2] * 12))
            context.decode(Batch.get_one([3, 5, 7] * 12))
            data = context.state_seq_get_data(0)
            expected = following(context)
            context.state_seq_set_data(data, 1)
            np.testing.assert_array_equal(following(context, 1), expected)


@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_states_of_recurrent_models_are_restored(tmp_path, name):
    path = recurrent()[name].write(tmp_path / "model.gguf")
    with Model(path, device="cpu") as model, Context(model, n_ctx=64, n_seq_max=2) as context:
        context.decode(Batch.get_one([3, 5, 7, 2] * 4))
        data = context.state_seq_get_data(0)
        expected = following(context)
        assert not context.seq_rm(0, 7, 9)
        context.state_seq_set_data(data, 1)
        np.testing.assert_array_equal(following(context, 1), expected)
