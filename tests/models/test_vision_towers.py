"""Towers for pictures against the papers' formulas, in NumPy."""

import math

import numpy as np
import pytest
from PIL import Image

from tests.models.towers import (
    Weights,
    attention,
    layer_norm,
    layer_shapes,
    linear,
    open_tower,
    random_weights,
    rms_norm,
    rows,
    tanh_gelu,
    write_mmproj,
)
from wgpu_backend.errors import ModelError, OptionError
from wgpu_backend.nn.tower import Media, Rows, make_media
from wgpu_backend.testing import nmse

DEVICES = ["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)]
PIXELS = np.random.default_rng(3).integers(0, 256, (50, 70, 3), np.uint8)

SIDE, PATCH, WIDTH, INNER, COLS, HEADS, EPS = 4, 14, 32, 48, 24, 2, 1e-3
GEMMA3 = {
    "projector_type": "gemma3",
    "use_gelu": True,
    "vision.image_size": SIDE * PATCH,
    "vision.patch_size": PATCH,
    "vision.embedding_length": WIDTH,
    "vision.feed_forward_length": INNER,
    "vision.block_count": 2,
    "vision.projection_dim": COLS,
    "vision.attention.head_count": HEADS,
    "vision.attention.layer_norm_epsilon": EPS,
    "vision.image_mean": [0.5, 0.4, 0.3],
    "vision.image_std": [0.5, 0.25, 0.125],
    "vision.projector.scale_factor": 2,
}


def gemma3_weights() -> Weights:
    return random_weights(
        {
            "v.patch_embd.weight": (WIDTH, 3, PATCH, PATCH),
            "v.patch_embd.bias": (WIDTH,),
            "v.position_embd.weight": (SIDE**2, WIDTH),
            **layer_shapes(2, WIDTH, INNER),
            "v.post_ln.weight": (WIDTH,),
            "v.post_ln.bias": (WIDTH,),
            "mm.input_projection.weight": (WIDTH, COLS),
            "mm.soft_emb_norm.weight": (WIDTH,),
        }
    )


def gemma3_rows(weights: Weights) -> np.ndarray:
    """Convolve, encode, average squares of four patches, normalise and project."""
    whole = Image.fromarray(PIXELS).resize((SIDE * PATCH,) * 2, Image.Resampling.BILINEAR)
    values = (np.asarray(whole) / 255 - GEMMA3["vision.image_mean"]) / GEMMA3["vision.image_std"]
    patches = [
        values[i : i + PATCH, j : j + PATCH].transpose(2, 0, 1).ravel()
        for i in range(0, SIDE * PATCH, PATCH)
        for j in range(0, SIDE * PATCH, PATCH)
    ]
    x = linear(np.stack(patches), weights, "v.patch_embd") + weights["v.position_embd.weight"]
    for i in range(2):
        y = layer_norm(x, weights, f"v.blk.{i}.ln1", EPS)
        q, k, v = (linear(y, weights, f"v.blk.{i}.attn_{part}") for part in "qkv")
        x = x + linear(attention(q, k, v, HEADS), weights, f"v.blk.{i}.attn_out")
        y = tanh_gelu(linear(layer_norm(x, weights, f"v.blk.{i}.ln2", EPS), weights,
                             f"v.blk.{i}.ffn_up"))  # fmt: skip
        x = x + linear(y, weights, f"v.blk.{i}.ffn_down")
    x = layer_norm(x, weights, "v.post_ln", EPS).reshape(2, 2, 2, 2, WIDTH).mean((1, 3))
    soft = rms_norm(x.reshape(4, WIDTH), weights["mm.soft_emb_norm.weight"], EPS)
    return soft @ weights["mm.input_projection.weight"]


@pytest.mark.parametrize("device", DEVICES)
def test_gemma3(tmp_path, device):
    weights = gemma3_weights()
    tower, backend = open_tower(write_mmproj(tmp_path / "mmproj.gguf", GEMMA3, weights), device)
    with backend:
        media = tower.prepare(PIXELS)
        assert media.layout == ["\n\n<start_of_image>", Rows(4), "<end_of_image>\n\n"]
        found = rows(tower, media)
    assert tower.cols == found.shape[1] == COLS
    assert nmse(found, gemma3_rows(weights)) < 1e-11


def test_a_missing_weight_is_named(tmp_path):
    weights = gemma3_weights()
    del weights["v.blk.1.ffn_up.weight"]
    path = write_mmproj(tmp_path / "mmproj.gguf", GEMMA3, weights)
    with pytest.raises(ModelError, match=r"mmproj\.gguf: tensor v\.blk\.1\.ffn_up\.weight"):
        open_tower(path, "cpu")


def test_an_unknown_projector_is_named_with_those_known(tmp_path):
    keys = {**GEMMA3, "projector_type": "gemma9"}
    path = write_mmproj(tmp_path / "mmproj.gguf", keys, gemma3_weights())
    with pytest.raises(ModelError, match=r"projector 'gemma9' for image is unknown.*gemma3"):
        open_tower(path, "cpu")


def test_a_digest_changes_with_values_shapes_and_layout():
    values = np.arange(6, dtype=np.float32)
    made: list[Media] = [
        make_media({"x": values}, [Rows(2)]),
        make_media({"x": values + 1}, [Rows(2)]),
        make_media({"x": values.reshape(2, 3)}, [Rows(2)]),
        make_media({"y": values}, [Rows(2)]),
        make_media({"x": values}, ["a", Rows(2)]),
        make_media({"x": values}, [Rows(2, (1, 1, 2))]),
    ]
    some = np.arange(6, dtype=np.uint8)
    both = {"x": values, "y": values}
    made += [make_media(both, [Rows(2)], sources={"x": each}) for each in (some, some + 1)]
    made.append(make_media({"x": values, "y": values + 1}, [Rows(2)], sources={"x": some}))
    assert len({media.digest for media in made}) == len(made)
    assert make_media({"x": values}, [Rows(2)]).digest == made[0].digest
    assert make_media({}, ["a", Rows(2), "b", Rows(3)]).rows == 5


# Qwen's towers: two patches a side become one row.

Q_PATCH, Q_WIDTH, Q_INNER, Q_OUT = 14, 32, 40, 24
Q_SIDE = 5  # of Qwen3-VL's table of positions
QWEN = {
    "vision.patch_size": Q_PATCH,
    "vision.embedding_length": Q_WIDTH,
    "vision.feed_forward_length": Q_INNER,
    "vision.block_count": 4,
    "vision.projection_dim": Q_OUT,
    "vision.attention.head_count": 2,
    # The published code has 1e-6, whatever the file says.
    "vision.attention.layer_norm_epsilon": 0.5,
    "vision.image_mean": [0.5, 0.4, 0.3],
    "vision.image_std": [0.5, 0.25, 0.125],
    "vision.image_min_pixels": 28 * 28,
    "vision.image_max_pixels": 28 * 28 * 64,
}
QWEN_KEYS = {
    2: {**QWEN, "projector_type": "qwen2vl_merger"},
    # Windows of two squares a side.
    2.5: {
        **QWEN,
        "projector_type": "qwen2.5vl_merger",
        "vision.n_wa_pattern": 2,
        "vision.window_size": 56,
    },
    3: {
        **QWEN,
        "projector_type": "qwen3vl_merger",
        "vision.is_deepstack_layers": [True, False, True, False],
    },
}


def qwen_weights(version: float) -> Weights:
    joined = 4 * Q_WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (Q_WIDTH, 3, Q_PATCH, Q_PATCH),
        "v.patch_embd.weight.1": (Q_WIDTH, 3, Q_PATCH, Q_PATCH),
        **layer_shapes(4, Q_WIDTH, Q_INNER),
        "v.post_ln.weight": (Q_WIDTH,),
        "v.post_ln.bias": (Q_WIDTH,),
        "mm.0.weight": (joined, joined),
        "mm.0.bias": (joined,),
        "mm.2.weight": (Q_OUT, joined),
        "mm.2.bias": (Q_OUT,),
    }
    if version == 2.5:
        shapes |= {f"v.blk.{i}.ffn_gate.weight": (Q_INNER, Q_WIDTH) for i in range(4)}
        shapes = {
            name: shape
            for name, shape in shapes.items()
            if not name.endswith(("ln1.bias", "ln2.bias", "post_ln.bias"))
        }
    if version == 3:
        shapes["v.position_embd.weight"] = (Q_SIDE**2, Q_WIDTH)
        shapes["v.patch_embd.bias"] = (Q_WIDTH,)
        for i in (0, 2):
            parts = {"norm": (joined,), "fc1": (joined, joined), "fc2": (Q_OUT, joined)}
            for part, shape in parts.items():
                shapes[f"v.deepstack.{i}.{part}.weight"] = shape
                shapes[f"v.deepstack.{i}.{part}.bias"] = shape[:1]
    return random_weights(shapes)


def erf_gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def qwen_places(rows: int, columns: int) -> list[tuple[int, int]]:
    """Row and column of each patch, square by square."""
    return [
        (2 * i + di, 2 * j + dj)
        for i in range(rows // 2)
        for j in range(columns // 2)
        for di in range(2)
        for dj in range(2)
    ]


def qwen_rotated(x: np.ndarray, places: list[tuple[int, int]]) -> np.ndarray:
    """Rotate halves of each head: of its pairs, half by the row, half by the column."""
    heads = x.reshape(len(x), 2, -1)
    half = heads.shape[-1] // 2
    frequencies = 10000.0 ** (-np.arange(0, half, 2) / half)
    turns = [np.concatenate([row * frequencies, column * frequencies]) for row, column in places]
    angles = np.stack(turns)[:, None]
    first, second = heads[..., :half], heads[..., half:]
    made = [
        first * np.cos(angles) - second * np.sin(angles),
        first * np.sin(angles) + second * np.cos(angles),
    ]
    return np.concatenate(made, -1).reshape(x.shape)


def qwen_attention(q, k, v, places, is_whole: bool) -> np.ndarray:
    """Attend over all patches, or over those of the same window of four patches a side."""
    if is_whole:
        return attention(q, k, v, 2)
    made = np.zeros_like(q)
    windows = [(row // 4, column // 4) for row, column in places]
    for window in set(windows):
        inside = [i for i, other in enumerate(windows) if other == window]
        made[inside] = attention(q[inside], k[inside], v[inside], 2)
    return made


def qwen_positions(table: np.ndarray, rows: int, columns: int, places) -> np.ndarray:
    """Interpolate the table; its corners are the picture's."""
    grid = table.reshape(Q_SIDE, Q_SIDE, Q_WIDTH)
    made = []
    for row, column in places:
        y, x = row * (Q_SIDE - 1) / (rows - 1), column * (Q_SIDE - 1) / (columns - 1)
        top, left = min(int(y), Q_SIDE - 2), min(int(x), Q_SIDE - 2)
        down, right = y - top, x - left
        made.append(
            grid[top, left] * (1 - down) * (1 - right)
            + grid[top, left + 1] * (1 - down) * right
            + grid[top + 1, left] * down * (1 - right)
            + grid[top + 1, left + 1] * down * right
        )
    return np.stack(made)


def qwen_rows(
    weights: Weights, version: float, pixels: np.ndarray, rows: int, columns: int
) -> np.ndarray:
    size = (columns * Q_PATCH, rows * Q_PATCH)
    whole = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
    values = (np.asarray(whole) / 255 - QWEN["vision.image_mean"]) / QWEN["vision.image_std"]
    places = qwen_places(rows, columns)
    patches = np.stack(
        [
            values[i * Q_PATCH : (i + 1) * Q_PATCH, j * Q_PATCH : (j + 1) * Q_PATCH]
            .transpose(2, 0, 1)
            .ravel()
            for i, j in places
        ]
    )
    second = weights["v.patch_embd.weight.1"].reshape(Q_WIDTH, -1)
    x = linear(patches, weights, "v.patch_embd") + patches @ second.T

    def norm(x, name):
        if version == 2.5:
            return rms_norm(x, weights[f"{name}.weight"], 1e-6)
        return layer_norm(x, weights, name, 1e-6)

    if version == 3:
        x = x + qwen_positions(weights["v.position_embd.weight"], rows, columns, places)
    deep = []
    for i in range(4):
        y = norm(x, f"v.blk.{i}.ln1")
        q, k, v = (linear(y, weights, f"v.blk.{i}.attn_{part}") for part in "qkv")
        q, k = qwen_rotated(q, places), qwen_rotated(k, places)
        is_whole = version != 2.5 or i % 2 == 1
        y = qwen_attention(q, k, v, places, is_whole)
        x = x + linear(y, weights, f"v.blk.{i}.attn_out")
        y = norm(x, f"v.blk.{i}.ln2")
        up = linear(y, weights, f"v.blk.{i}.ffn_up")
        if version == 2.5:
            gate = linear(y, weights, f"v.blk.{i}.ffn_gate")
            inner = gate / (1 + np.exp(-gate)) * up
        else:
            inner = up / (1 + np.exp(-1.702 * up)) if version == 2 else tanh_gelu(up)
        x = x + linear(inner, weights, f"v.blk.{i}.ffn_down")
        if version == 3 and i in (0, 2):
            y = layer_norm(x.reshape(len(x) // 4, -1), weights, f"v.deepstack.{i}.norm", 1e-6)
            y = erf_gelu(linear(y, weights, f"v.deepstack.{i}.fc1"))
            deep.append(linear(y, weights, f"v.deepstack.{i}.fc2"))
    y = norm(x, "v.post_ln").reshape(len(x) // 4, -1)
    merged = linear(erf_gelu(linear(y, weights, "mm.0")), weights, "mm.2")
    return np.concatenate([merged, *deep], -1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("version", QWEN_KEYS)
def test_qwen(tmp_path, version, device):
    weights = qwen_weights(version)
    path = write_mmproj(tmp_path / "mmproj.gguf", QWEN_KEYS[version], weights)
    tower, backend = open_tower(path, device)
    with backend:
        # 50 x 70 pixels: the nearest multiples of 28 are 56 and 56, as 2.5 is rounded to even.
        media = tower.prepare(PIXELS)
        assert media.layout == [Rows(4, (1, 2, 2))]
        assert nmse(rows(tower, media), qwen_rows(weights, version, PIXELS, 4, 4)) < 1e-10
        # More squares than fit a window, in both directions; the last windows are smaller.
        wide = np.asarray(Image.fromarray(PIXELS).resize((140, 84)))
        media = tower.prepare(wide)
        assert media.layout == [Rows(15, (1, 3, 5))]
        found = rows(tower, media)
    assert found.shape == (15, tower.cols)
    assert nmse(found, qwen_rows(weights, version, wide, 6, 10)) < 1e-10


def test_qwen_refuses_a_strip(tmp_path):
    path = write_mmproj(tmp_path / "mmproj.gguf", QWEN_KEYS[2], qwen_weights(2))
    tower, backend = open_tower(path, "cpu")
    with backend, pytest.raises(OptionError, match=r"900 x 4 pixels, .* at most 200"):
        tower.prepare(np.zeros((4, 900, 3), np.uint8))
