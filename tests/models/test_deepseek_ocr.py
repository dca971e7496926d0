"""DeepSeek-OCR: rows and logits of transformers' parts of it, and files of llama.cpp.

Recorded by `tests/data/make_deepseek_ocr.py`, with transformers 5.24 and Pillow 13.
"""

import json
import math

import numpy as np
import pytest
from gguf import GGUFReader
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image, ImageOps

import wgpu_backend as wb
from tests.models.recorded import LIMIT, Recorded
from tests.models.towers import (
    attention,
    layer_norm,
    linear,
    open_tower,
    random_weights,
    rows,
    softmax,
    write_mmproj,
)
from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface.create import create
from wgpu_backend.nn.tower import Rows
from wgpu_backend.nn.vision.processing import find_grid
from wgpu_backend.testing import nmse

DEVICES = ["cpu", pytest.param("software", marks=pytest.mark.gpu)]
OCR = Recorded("deepseek_ocr", "<image>")
EXACT = {"exact": True, "kv_dtype": "f32", "num_ctx": 256}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return OCR.write(tmp_path_factory.mktemp("deepseek-ocr") / "hf")


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_logits_and_rows_are_those_of_transformers(folder, device):
    with wb.load(folder, device=device, **EXACT) as model:
        # A graph of each size takes a while to compile.
        for name in OCR.facts["sizes"] if device == "cpu" else "ac":
            OCR.require_rows(model, name)
        OCR.require_logits(model)


def test_create_writes_a_model_and_its_tower(folder, tmp_path):
    report = create(tmp_path / "made.gguf", folder)
    assert report.tower == tmp_path / "mmproj-made.gguf"
    # llama.cpp's converter writes the size for latents, of which there are none.
    field = GGUFReader(report.path, "r+").fields["deepseek2-ocr.rope.dimension_count"]
    assert field.parts[-1].tolist() == [8]
    field.parts[-1][:] = 0
    with wb.load(report.path, device="cpu", **EXACT) as model:
        OCR.require_logits(model)


def test_one_batch_answers_as_transformers_does(folder):
    with (
        wb.load(folder, device="cpu", num_parallel=len(OCR.cases), **EXACT) as model,
        wb.Engine(model, num_parallel=len(OCR.cases)) as engine,
    ):
        OCR.require_answers(engine, model)


def test_a_folder_that_asks_for_the_whole_picture_alone(folder, tmp_path):
    path = OCR.write(tmp_path / "hf")
    asked = {**OCR.facts["processor"], "crop_to_patches": False}
    (path / "preprocessor_config.json").write_text(json.dumps(asked))
    with wb.load(path, device="cpu", **EXACT) as model:
        [placed] = model._raw_prompt("<image>", [OCR.shown("c")]).placed
        assert nmse(model.towers.encode(placed), OCR.arrays["rows c"][-13:]) < LIMIT


# The whole tower in NumPy, with the names and keys of llama.cpp's files.

PATCH, SAM, NECK, WIDTH, INNER, COLS, HEADS = 4, 16, 8, 24, 40, 20, 2
CHANNELS = {"v.sam.neck.0": (NECK, SAM, 1, 1), "v.sam.neck.2": (NECK, NECK, 3, 3),
            "v.sam.net_2": (12, NECK, 3, 3), "v.sam.net_3": (WIDTH, 12, 3, 3)}  # fmt: skip


def random_tower(rng, base):
    """Return the weights of a tower of random size, and its keys."""
    window, layers = int(rng.integers(2, 7)), 3
    whole = sorted({*rng.integers(0, layers, 2).tolist()})
    side = base // PATCH
    shapes = {
        "v.sam.patch_embd.weight": (SAM, 3, PATCH, PATCH),
        "v.sam.patch_embd.bias": (SAM,),
        "v.sam.pos_embd.weight": (1, side, side, SAM),
        **{f"{name}.weight": shape for name, shape in CHANNELS.items()},
        # Of layers that are not used, such as CLIP's own patches.
        "v.patch_embd.weight": (WIDTH, 3, 2, 2),
        "v.class_embd": (WIDTH,),
        "v.position_embd.weight": (1 + (side // 4) ** 2, WIDTH),
        "v.image_newline": (COLS,),
        "v.view_seperator": (1, COLS),
        "mm.model.fc.weight": (COLS, 2 * WIDTH),
        "mm.model.fc.bias": (COLS,),
    }
    norms = {"v.pre_ln": WIDTH, "v.sam.neck.1": NECK, "v.sam.neck.3": NECK}
    matrices = {}
    for i in range(layers):
        own = f"v.sam.blk.{i}"
        distances = 2 * (side if i in whole else window) - 1
        shapes |= {f"{own}.attn.pos_{axis}.weight": (distances, SAM // HEADS) for axis in "hw"}
        norms |= {f"{own}.pre_ln": SAM, f"{own}.post_ln": SAM}
        matrices |= {
            f"{own}.attn.qkv": (3 * SAM, SAM),
            f"{own}.attn.out": (SAM, SAM),
            f"{own}.mlp.lin1": (4 * SAM, SAM),
            f"{own}.mlp.lin2": (SAM, 4 * SAM),
        }
    for i in range(2):
        own = f"v.blk.{i}"
        norms |= {f"{own}.ln1": WIDTH, f"{own}.ln2": WIDTH}
        matrices |= {
            f"{own}.attn_qkv": (3 * WIDTH, WIDTH),
            f"{own}.attn_out": (WIDTH, WIDTH),
            f"{own}.ffn_up": (INNER, WIDTH),
            f"{own}.ffn_down": (WIDTH, INNER),
        }
    for name, rows_and_columns in matrices.items():
        shapes |= {f"{name}.weight": rows_and_columns, f"{name}.bias": rows_and_columns[:1]}
    for name, count in norms.items():
        shapes |= {f"{name}.weight": (count,), f"{name}.bias": (count,)}
    keys = {
        "projector_type": "deepseekocr",
        "use_gelu": True,
        # llama.cpp's converter takes these from CLIP's section, or computes them wrongly.
        "vision.image_size": 224,
        "vision.patch_size": 14,
        "vision.feed_forward_length": 4 * HEADS,
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.embedding_length": WIDTH,
        "vision.block_count": 2,
        "vision.projection_dim": COLS,
        "vision.attention.head_count": HEADS,
        "vision.image_mean": [0.5, 0.4, 0.3],
        "vision.image_std": [0.5, 0.25, 0.125],
        "vision.window_size": window,
        "vision.preproc_min_tiles": 2,
        "vision.preproc_max_tiles": 9,
        "vision.sam.block_count": layers,
        "vision.sam.embedding_length": SAM,
        "vision.sam.head_count": HEADS,
        # Two keys that llama.cpp has as constants.
        "vision.sam.global_layers": whole,
        "vision.preproc_tile_size": 32,
    }
    return random_weights(shapes, int(rng.integers(1 << 30))), keys


def smaller(table, side):
    """Pillow's own cubic filter for each column of a table (base, base, width)."""
    planes = [Image.fromarray(plane).resize((side, side)) for plane in table.transpose(2, 0, 1)]
    return np.stack([np.asarray(plane) for plane in planes], -1)


def sam_attention(x, weights, name):
    """Attend to all of (side, side, SAM), with biases by distance: published formulas."""
    side, head = len(x), SAM // HEADS
    qkv = linear(x, weights, f"{name}.qkv").reshape(side, side, 3, HEADS, head)
    q, k, v = qkv.transpose(2, 3, 0, 1, 4)
    tables = []
    for axis in "hw":
        table = weights[f"{name}.pos_{axis}.weight"]
        places = (np.arange(2 * side - 1) + 0.5) * len(table) / (2 * side - 1) - 0.5
        known = np.arange(len(table))
        resized = np.stack([np.interp(places, known, column) for column in table.T], 1)
        lines = np.arange(side)
        tables.append(resized[lines[:, None] - lines + side - 1])
    scores = np.einsum("nijc,nklc->nijkl", q, k) / np.sqrt(head)
    scores += np.einsum("nijc,ikc->nijk", q, tables[0])[..., None]
    scores += np.einsum("nijc,jlc->nijl", q, tables[1])[..., None, :]
    shares = softmax(scores.reshape(HEADS, side**2, side**2))
    made = shares @ v.reshape(HEADS, side**2, head)
    made = made.transpose(1, 0, 2).reshape(side, side, SAM)
    return linear(made, weights, f"{name}.out")


def convolve(x, kernel, stride):
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    fields = sliding_window_view(padded, (3, 3), axis=(0, 1))[::stride, ::stride]
    return np.einsum("ijcab,ocab->ijo", fields, kernel)


def erf_gelu(x):
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def encode_view(view, weights, keys):
    """Return the rows of a view of u8: (side / 4, side / 4, COLS)."""
    values = (view / 255 - keys["vision.image_mean"]) / keys["vision.image_std"]
    side = len(values) // PATCH
    patches = values.reshape(side, PATCH, side, PATCH, 3).transpose(0, 2, 4, 1, 3)
    x = linear(patches.reshape(side, side, -1), weights, "v.sam.patch_embd")
    x = x + smaller(weights["v.sam.pos_embd.weight"][0], side)
    window = keys["vision.window_size"]
    for i in range(keys["vision.sam.block_count"]):
        own = f"v.sam.blk.{i}"
        y = layer_norm(x, weights, f"{own}.pre_ln", 1e-6)
        if i in keys["vision.sam.global_layers"]:
            y = sam_attention(y, weights, f"{own}.attn")
        else:
            missing = -side % window
            padded = np.pad(y, ((0, missing), (0, missing), (0, 0)))
            for top in range(0, side, window):
                for left in range(0, side, window):
                    own_place = slice(top, top + window), slice(left, left + window)
                    padded[own_place] = sam_attention(padded[own_place], weights, f"{own}.attn")
            y = padded[:side, :side]
        x = x + y
        y = layer_norm(x, weights, f"{own}.post_ln", 1e-6)
        y = erf_gelu(linear(y, weights, f"{own}.mlp.lin1"))
        x = x + linear(y, weights, f"{own}.mlp.lin2")
    x = layer_norm(linear(x, weights, "v.sam.neck.0"), weights, "v.sam.neck.1", 1e-6)
    x = convolve(x, weights["v.sam.neck.2.weight"], 1)
    x = layer_norm(x, weights, "v.sam.neck.3", 1e-6)
    x = convolve(convolve(x, weights["v.sam.net_2.weight"], 2), weights["v.sam.net_3.weight"], 2)
    x, side = x.reshape(-1, WIDTH), len(x)
    table = weights["v.position_embd.weight"]
    base = math.isqrt(len(table))
    places = smaller(table[1:].reshape(base, base, WIDTH), side).reshape(-1, WIDTH)
    y = np.concatenate([weights["v.class_embd"][None] + table[:1], x + places])
    y = layer_norm(y, weights, "v.pre_ln", 1e-5)
    for i in range(2):
        z = layer_norm(y, weights, f"v.blk.{i}.ln1", 1e-5)
        q, k, v = np.split(linear(z, weights, f"v.blk.{i}.attn_qkv"), 3, 1)
        y = y + linear(attention(q, k, v, HEADS), weights, f"v.blk.{i}.attn_out")
        z = linear(layer_norm(y, weights, f"v.blk.{i}.ln2", 1e-5), weights, f"v.blk.{i}.ffn_up")
        y = y + linear(z / (1 + np.exp(-1.702 * z)), weights, f"v.blk.{i}.ffn_down")
    made = linear(np.concatenate([y[1:], x], 1), weights, "mm.model.fc")
    return made.reshape(side, side, COLS)


def expected_rows(pixels, weights, keys, base):
    tile, image = keys["vision.preproc_tile_size"], Image.fromarray(pixels)

    def end(lines):
        newline = np.tile(weights["v.image_newline"], (len(lines), 1, 1))
        return np.concatenate([lines, newline], 1).reshape(-1, COLS)

    whole = np.asarray(ImageOps.pad(image, (base, base), color=(127, 127, 127)))
    made = [end(encode_view(whole, weights, keys)), weights["v.view_seperator"]]
    if max(image.size) > tile:
        down, across = find_grid(pixels.shape[:2], (tile, tile), 2, 9)
        large = np.asarray(image.resize((across * tile, down * tile)))
        views = [np.split(line, across, 1) for line in np.split(large, down)]
        lines = [[encode_view(view, weights, keys) for view in line] for line in views]
        made.insert(0, end(np.concatenate([np.concatenate(line, 1) for line in lines])))
    return np.concatenate(made)


@pytest.mark.parametrize("device", ["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("size", [(32, 17), (41, 70), (100, 33)])
def test_a_random_tower_in_llama_cpp_s_file(tmp_path, rng, device, size):
    base = 16 * int(rng.integers(2, 5))
    weights, keys = random_tower(rng, base)
    path = write_mmproj(tmp_path / "mmproj.gguf", keys, weights)
    pixels = rng.integers(0, 256, (*size, 3), np.uint8)
    tower, backend = open_tower(path, device)
    with backend:
        media = tower.prepare(pixels)
        found, wanted = rows(tower, media), expected_rows(pixels, weights, keys, base)
    assert media.layout == [Rows(len(wanted))]
    # Weights of resized tables are computed in f32 here, as in PyTorch.
    assert nmse(found, wanted) < 1e-10


def test_views_are_those_of_pillow(tmp_path, rng):
    weights, keys = random_tower(rng, 48)
    path = write_mmproj(tmp_path / "mmproj.gguf", keys, weights)
    tower, backend = open_tower(path, "cpu")
    with backend:
        for _ in range(40):
            pixels = rng.integers(0, 256, (*rng.integers(1, 150, 2), 3), np.uint8)
            image = Image.fromarray(pixels)
            arrays = tower.prepare(pixels).arrays
            # Pillow refuses pictures whose shorter side would vanish.
            if min(image.size) * 48 / max(image.size) >= 1:
                whole = ImageOps.pad(image, (48, 48), color=(127, 127, 127))
                assert np.array_equal(arrays["whole"], tower.split([np.asarray(whole)]))
            assert ("tiles" in arrays) == (max(image.size) > 32)
            assert len(arrays["order"]) == tower.prepare(pixels).rows


def test_bytes_have_the_values_of_torch(tmp_path, rng):
    weights, keys = random_tower(rng, 32)
    keys |= {"vision.image_mean": [0.5] * 3, "vision.image_std": [0.5] * 3}
    path = write_mmproj(tmp_path / "mmproj.gguf", keys, weights)
    tower, backend = open_tower(path, "cpu")
    with backend:
        every = np.repeat(np.arange(256, dtype=np.uint8), 12).reshape(32, 32, 3)
        half = np.float32(0.5)
        wanted = (every.astype(np.float32) / np.float32(255) - half) / half
        found = tower.split([every]).reshape(8, 8, 3, 4, 4).transpose(0, 3, 1, 4, 2)
        assert np.array_equal(found.reshape(32, 32, 3), wanted)


def test_a_narrow_picture_keeps_a_line_of_pixels(tmp_path, rng):
    weights, keys = random_tower(rng, 32)
    path = write_mmproj(tmp_path / "mmproj.gguf", keys, weights)
    tower, backend = open_tower(path, "cpu")
    with backend:
        pixels = np.full((1, 400, 3), 255, np.uint8)
        values = tower.prepare(pixels).arrays["whole"]
        assert np.count_nonzero(values == values.max()) == 32


WRONG = {
    "heads": ({"vision.sam.head_count": 3}, {}, "is 16, needs a multiple of 3 heads"),
    "tile": ({"vision.preproc_tile_size": 30}, {}, "a tile has 30 pixels a side, needs a multiple"),
    "tiles": ({"vision.preproc_max_tiles": 1}, {}, "vision.preproc_min_tiles is 2, needs at most"),
    "table": ({}, {"v.sam.pos_embd.weight": (1, 8, 9, SAM)}, "needs \\(side, side, 16\\)"),
    "base": ({}, {"v.sam.pos_embd.weight": (1, 7, 7, SAM)}, "a picture has 28 pixels a side"),
    "places": ({}, {"v.position_embd.weight": (6, WIDTH)}, "needs \\(1 \\+ side², 24\\)"),
    "outputs": ({}, {"v.sam.net_3.weight": (WIDTH + 1, 12, 3, 3)}, "needs 24 outputs"),
    "missing": ({}, {"v.sam.neck.2.weight": None}, "v.sam.neck.2.weight is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_files_whose_parts_do_not_fit_are_refused(tmp_path, rng, name):
    more, shapes, said = WRONG[name]
    weights, keys = random_tower(rng, 32)
    for tensor, shape in shapes.items():
        if shape is None:
            del weights[tensor]
        else:
            weights[tensor] = np.zeros(shape, np.float32)
    path = write_mmproj(tmp_path / "mmproj.gguf", keys | more, weights)
    with pytest.raises(ModelError, match=f"mmproj.gguf: .*{said}"):
        open_tower(path, "cpu")
