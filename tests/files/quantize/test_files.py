"""Whole files in other types: what is in them, what is refused, and what is left behind."""

import struct

import gguf
import numpy as np
import pytest

import wgpu_backend as wb
from tests.builders import Dims, dequantised, tiny_model
from wgpu_backend.dtypes import F32, Q4_K, Q8_0
from wgpu_backend.errors import GGUFError, ModelError, OptionError
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.files.quantize import quantize_rows
from wgpu_backend.files.quantize.importance import read_importances

WIDE = Dims(width=256, head_dim=64, feed_forward=256, layers=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("files") / "f32.gguf", dims=WIDE)


@pytest.fixture(scope="module")
def weights(model):
    return dequantised(model)


def test_tensors_are_quantised_and_keys_kept(model, weights, tmp_path):
    out = tmp_path / "out.gguf"
    shares = []
    report = wb.quantize(model, str(out), "q4_k_s", threads=2, progress=shares.append)
    with open_gguf(model) as before, open_gguf(out) as after:
        changed = {"general.quantization_version": 2, "general.file_type": 14}
        assert str(dict(after.metadata)) == str(before.metadata | changed)
        kept = {key: str(kind) for key, kind in before.numbers.items()}
        assert kept.items() <= {key: str(kind) for key, kind in after.numbers.items()}.items()
        assert list(after.tensors) == list(before.tensors)
        name = "blk.0.ffn_up.weight"
        assert after.tensors[name].dtype == Q4_K
        assert after.data(name) == quantize_rows(weights[name], Q4_K)
        assert after.tensors["blk.0.attn_norm.weight"].dtype == F32
        assert report.types == {n: info.dtype for n, info in after.tensors.items()}
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1, abs=1e-3)
    assert report.bits_per_weight < 7


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
def test_a_file_runs_after_it(model, tmp_path, dtype):
    wb.quantize(model, tmp_path / "out.gguf", dtype, threads=1)
    with (
        wb.load(model, device="cpu") as whole,
        wb.load(tmp_path / "out.gguf", device="cpu") as made,
    ):
        want, got = whole.logits([1, 2, 3]), made.logits([1, 2, 3])
    assert 0 < ((got - want) ** 2).sum() / (want**2).sum() < 2e-3


def test_experts_have_importances_of_their_own(tmp_path, rng):
    values = rng.standard_normal((3, 2, 256), "f4")
    sums, counts = rng.uniform(0, 9, (3, 256)).astype("f4"), np.array([4, 0, 7], "f4")
    name = "blk.0.ffn_up_exps.weight"
    writer = gguf.GGUFWriter(tmp_path / "in.gguf", "llama")
    writer.add_block_count(1)
    writer.add_tensor(name, values)
    finish(writer)
    matrix = gguf.GGUFWriter(tmp_path / "imatrix.gguf", "imatrix")
    matrix.add_uint32("imatrix.chunk_count", 5)
    matrix.add_tensor(f"{name}.in_sum2", sums)
    matrix.add_tensor(f"{name}.counts", counts[:, None])
    finish(matrix)
    out = tmp_path / "out.gguf"
    wb.quantize(tmp_path / "in.gguf", out, "Q4_K_M", importance=tmp_path / "imatrix.gguf")
    means = [sums[0] / 4, np.ones(256, "f4"), sums[2] / 7]
    with open_gguf(out) as file:
        want = b"".join(quantize_rows(values[k], Q4_K, means[k]) for k in range(3))
        assert file.data(name) == want
        assert file.metadata["quantize.imatrix.chunks_count"] == 5


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_older_format_of_importances(tmp_path):
    sums = np.array([2, 4, 8], "f4")
    entry = struct.pack("<i1sii", 1, b"w", 2, 3) + sums.tobytes()
    (tmp_path / "imatrix.dat").write_bytes(struct.pack("<i", 1) + entry + struct.pack("<i", 9))
    found = read_importances(tmp_path / "imatrix.dat")
    assert found.values["w"].tolist() == [1, 2, 4]
    assert found.chunks == 9
    (tmp_path / "cut.dat").write_bytes((struct.pack("<i", 1) + entry)[:-4])
    with pytest.raises(GGUFError, match="needs 12 bytes at offset 17, 8 are left"):
        read_importances(tmp_path / "cut.dat")


def test_blocks_are_quantised_again_only_where_that_is_asked_for(model, tmp_path):
    first, second = tmp_path / "q8.gguf", tmp_path / "q4.gguf"
    wb.quantize(model, first, "Q8_0")
    with pytest.raises(ModelError, match=r"token_embd.weight is q8_0 already.*--allow-requantize"):
        wb.quantize(first, second, "Q4_K_M")
    assert not second.exists()
    report = wb.quantize(first, second, "Q4_K_M", allow_requantize=True)
    assert report.types["blk.0.ffn_up.weight"] == Q4_K
    wb.quantize(first, second, "Q8_0")  # nothing changes, so nothing is quantised again
    with open_gguf(first) as one, open_gguf(second) as other:
        assert one.data("output.weight") == other.data("output.weight")
        assert one.tensors["output.weight"].dtype == Q8_0


def test_what_cannot_be_written_leaves_nothing(model, tmp_path):
    huge = tiny_model(
        tmp_path / "huge.gguf",
        dims=WIDE,
        vectors={"blk.0.ffn_up.weight": np.full((256, 256), 1e30, "f4")},
    )
    out = tmp_path / "new" / "out.gguf"
    out.parent.mkdir()
    with pytest.raises(ModelError, match=r"huge.gguf: tensor blk.0.ffn_up.weight: q4_k: row 0"):
        wb.quantize(huge, out, "Q4_K_S")
    assert list(out.parent.iterdir()) == []
    with pytest.raises(ModelError, match="the file to read and the one to write are the same"):
        wb.quantize(huge, huge, "Q8_0")
    with pytest.raises(OptionError, match="type 'q4_x': unknown, needs one of"):
        wb.quantize(model, out, "q4_x")
    with pytest.raises(OptionError, match="Q2_K_S: needs an importance matrix"):
        wb.quantize(model, out, "Q2_K_S")
    with pytest.raises(ModelError, match="no tensor NAME"):
        wb.quantize(model, out, "Q4_K_M", importance=model)


def test_an_error_of_the_caller_ends_it(model, tmp_path):
    def stop(_share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wb.quantize(model, tmp_path / "out.gguf", "Q8_0", progress=stop)
    assert list(tmp_path.iterdir()) == []
