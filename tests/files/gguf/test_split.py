"""Split models, as gguf-py splits them: read as one file, and wrong parts named."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

import wgpu_backend as wb
from tests.builders import tiny_model
from wgpu_backend.cli.model_facts import describe_file, list_facts
from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.files.gguf.header import TensorInfo
from wgpu_backend.files.gguf.reader import open_gguf, open_parts
from wgpu_backend.files.quantize.files import quantize

COUNT = 5  # of 21 tensors, five a part


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("split")
    tiny_model(made / "one.gguf")
    tiny_model(made / "m.gguf", tensors_per_part=5)
    return made


@pytest.fixture
def parts(folder, tmp_path):
    return [Path(shutil.copy(path, tmp_path)) for path in sorted(folder.glob("m-*"))]


def by_reference(path) -> dict[str, bytes]:
    return {tensor.name: tensor.data.tobytes() for tensor in GGUFReader(path).tensors}


def test_the_first_part_opens_all(folder, parts):
    assert len(parts) == COUNT
    want = by_reference(folder / "one.gguf")
    with open_gguf(parts[0]) as file:
        assert list(want) == list(file.tensors)
        assert want == {name: bytes(file.data(name)) for name in file.tensors}
        assert list(file.paths) == parts
        assert file.config.architecture == "llama"
    with pytest.raises(ModelError, match="closed file"):
        file.data("output.weight")


def test_a_split_model_answers_as_the_whole_one(folder, parts):
    texts = []
    for path in (folder / "one.gguf", parts[0]):
        with wb.load(path, device="cpu") as model:
            texts.append(model.generate("in the", options={"temperature": 0, "num_predict": 5}))
    assert texts[0] == texts[1]


def test_a_link_to_a_part_finds_the_parts_beside_the_link(parts, tmp_path):
    # Hugging Face's cache keeps files by their digests, and has links by their names.
    (tmp_path / "blobs").mkdir()
    for path in parts:
        moved = path.rename(tmp_path / "blobs" / path.stem[::-1])
        path.symlink_to(moved)
    with open_gguf(parts[0]) as file:
        assert len(file.tensors) == 21


def test_missing_parts_are_named(parts):
    parts[1].unlink()
    parts[4].unlink()
    told = r"missing in its folder: m-00002-of-00005.gguf, m-00005-of-00005.gguf$"
    with pytest.raises(GGUFError, match=told):
        open_gguf(parts[0])


def test_another_part_than_the_first_names_the_first(parts):
    with pytest.raises(GGUFError, match=r"part 3 of 5, name the first part: .*m-00001-of-00005"):
        open_gguf(parts[2])


def test_a_first_part_of_another_name_says_which_it_needs(parts):
    renamed = parts[0].rename(parts[0].with_name("model.gguf"))
    with pytest.raises(GGUFError, match=r"part 1 of 5 .* needs the name model-00001-of-00005.gguf"):
        open_gguf(renamed)


def test_parts_in_the_wrong_place_are_named(parts):
    shutil.copy(parts[3], parts[1])
    with pytest.raises(GGUFError, match=r"m-00002-of-00005.gguf: part 4 of 5 by its keys, needs"):
        open_gguf(parts[0])


def test_a_file_that_is_no_part_is_named(folder, parts):
    shutil.copy(folder / "one.gguf", parts[1])
    with pytest.raises(GGUFError, match=r"m-00002-of-00005.gguf: key 'split.no' is missing"):
        open_gguf(parts[0])


def test_a_damaged_part_is_named(parts):
    parts[2].write_bytes(parts[2].read_bytes()[:-1])
    with pytest.raises(GGUFError, match=r"m-00003-of-00005.gguf: .* truncated"):
        open_gguf(parts[0])


def part(path: Path, number: int, total: int, names: list[str], **strings: str) -> None:
    """A part of two, with some tensors of one value."""
    writer = GGUFWriter(path, strings.get("architecture", "llama"))
    writer.add_uint16("split.no", number)
    writer.add_uint16("split.count", 2)
    writer.add_int32("split.tensors.count", total)
    for name in names:
        writer.add_tensor(name, np.full(4, number, "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("total", "names", "strings", "told"),
    [
        (3, ["b"], {}, r"00002-of-00002.gguf: split.tensors.count is 3, that of a-00001-of-.* 2"),
        (2, ["a"], {}, r"00002-of-00002.gguf: tensor 'a' is in a-00001-of-00002.gguf too"),
        (2, ["b", "c"], {}, r"its 2 parts have 3 tensors, split.tensors.count is 2"),
        (2, ["b"], {"architecture": "qwen2"}, r"00002.gguf: general.architecture is 'qwen2'"),
    ],
    ids=["other total", "same tensor", "too many", "other architecture"],
)
def test_parts_of_other_models_are_named(tmp_path, total, names, strings, told):
    part(tmp_path / "a-00001-of-00002.gguf", 0, 2, ["a"])
    part(tmp_path / "a-00002-of-00002.gguf", 1, total, names, **strings)
    with pytest.raises(GGUFError, match=told):
        open_gguf(tmp_path / "a-00001-of-00002.gguf")


def test_a_first_part_may_have_no_tensors(tmp_path):
    part(tmp_path / "a-00001-of-00002.gguf", 0, 1, [])
    part(tmp_path / "a-00002-of-00002.gguf", 1, 1, ["b"])
    with open_gguf(tmp_path / "a-00001-of-00002.gguf") as file:
        assert np.frombuffer(file.data("b"), "f4").tolist() == [1.0] * 4


def test_parts_by_any_names_are_put_in_order(parts):
    moved = [path.rename(path.with_name(f"sha256-{9 - i}")) for i, path in enumerate(parts)]
    with open_parts(moved[::-1]) as file:
        assert len(file.tensors) == 21
    with pytest.raises(GGUFError, match="4 of 5 parts, needs all of them"):
        open_parts(moved[:4])
    with pytest.raises(GGUFError, match="part 3 of 5 by its keys, needs part 2"):
        open_parts([moved[0], *moved[2:]])


def test_quantize_makes_one_file_of_all_parts(folder, parts, tmp_path):
    quantize(parts[0], tmp_path / "q.gguf", "Q8_0")
    quantize(folder / "one.gguf", tmp_path / "want.gguf", "Q8_0")
    assert by_reference(tmp_path / "want.gguf") == by_reference(tmp_path / "q.gguf")
    assert not any(key.startswith("split.") for key in GGUFReader(tmp_path / "q.gguf").fields)
    with pytest.raises(ModelError, match="the same"):
        quantize(parts[0], parts[2], "Q8_0")


@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
def test_tensors_of_no_elements_are_taken(tmp_path, dtype, monkeypatch):
    empty = {"blk.0.unused.bias": np.zeros(0), "vision.table": np.zeros((0, 32))}
    path = tiny_model(tmp_path / "m.gguf", dtype=dtype, vectors=empty)
    with open_gguf(path) as file:
        shapes = {name: file.tensors[name].shape for name in empty}
        assert shapes == {name: values.shape for name, values in empty.items()}
        assert file.data("vision.table").nbytes == 0
    with wb.load(path, device="cpu") as model:
        assert model.generate("in", options={"temperature": 0, "num_predict": 1}) is not None
    quantize(path, tmp_path / "q.gguf", "Q8_0", allow_requantize=True)
    with open_gguf(tmp_path / "q.gguf") as file:
        assert isinstance(file.tensors["vision.table"], TensorInfo)


def test_a_needed_tensor_of_no_elements_is_refused(tmp_path):
    path = tiny_model(tmp_path / "m.gguf", vectors={"output_norm.weight": np.zeros(0)})
    with pytest.raises(ModelError, match="output_norm is missing"):
        wb.load(path, device="cpu")


def test_show_counts_the_bytes_of_all_parts(parts):
    with open_gguf(parts[0]) as file:
        shown = dict(list_facts(file))["file"]
        assert describe_file(file, tensors=False)["size"] == sum(p.stat().st_size for p in parts)
    assert shown.endswith("in 5 parts, GGUF version 3")
