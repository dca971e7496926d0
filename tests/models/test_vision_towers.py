"""Towers for pictures against the papers' formulas, in NumPy."""

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
from wgpu_backend.errors import ModelError
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
    assert len({media.digest for media in made}) == len(made)
    assert make_media({"x": values}, [Rows(2)]).digest == made[0].digest
    assert make_media({}, ["a", Rows(2), "b", Rows(3)]).rows == 5
