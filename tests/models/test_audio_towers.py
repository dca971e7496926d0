"""Towers for sound against their formulas in f64."""

import math

import numpy as np
import pytest

from tests.models.towers import (
    Weights,
    attention,
    layer_norm,
    linear,
    open_tower,
    random_weights,
    rows,
    write_mmproj,
)
from wgpu_backend.errors import MediaError, ModelError
from wgpu_backend.nn.audio.mel import log_mel
from wgpu_backend.nn.tower import Rows
from wgpu_backend.testing import nmse

WIDTH, HEADS, INNER, BANDS, COLS = 8, 2, 16, 16, 12
DEVICES = ["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)]
KEYS = {
    "has_vision_encoder": False,
    "has_audio_encoder": True,
    "audio.embedding_length": WIDTH,
    "audio.feed_forward_length": INNER,
    "audio.block_count": 2,
    "audio.attention.head_count": HEADS,
    "audio.attention.layer_norm_epsilon": 1e-5,
    "audio.num_mel_bins": BANDS,
    "audio.projection_dim": COLS,
}


def weights(**more: tuple[int, ...]) -> Weights:
    shapes = {
        "a.conv1d.1.weight": (WIDTH, BANDS, 3), "a.conv1d.1.bias": (WIDTH, 1),
        "a.conv1d.2.weight": (WIDTH, WIDTH, 3), "a.conv1d.2.bias": (WIDTH, 1),
        "a.position_embd.weight": (1500, WIDTH),
        "a.post_ln.weight": (WIDTH,), "a.post_ln.bias": (WIDTH,),
    }  # fmt: skip
    parts = {
        "ln1": (WIDTH,), "ln2": (WIDTH,), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER),
        **{f"attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")},
    }  # fmt: skip
    for i in range(2):
        for part, shape in parts.items():
            shapes[f"a.blk.{i}.{part}.weight"] = shape
            if part != "attn_k":
                shapes[f"a.blk.{i}.{part}.bias"] = shape[:1]
    return random_weights(shapes | more)


def gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def convolve(x: np.ndarray, w: Weights, name: str, stride: int) -> np.ndarray:
    padded = np.pad(x, ((1, 1), (0, 0)))
    taps = w[f"{name}.weight"].astype(float)
    made = sum(padded[k : k + len(x)] @ taps[:, :, k].T for k in range(3))[::stride]
    return gelu(made + w[f"{name}.bias"].reshape(-1))


def encoder(samples: np.ndarray, w: Weights, kept: int) -> np.ndarray:
    """States of 30 seconds, of which the first `kept` see each other, before the last norm."""
    return encode(log_mel(np.pad(samples, (0, 480_000 - len(samples))), BANDS), w, kept)


def encode(frames: np.ndarray, w: Weights, kept: int) -> np.ndarray:
    mel = frames.astype(float)
    x = convolve(convolve(mel, w, "a.conv1d.1", 1), w, "a.conv1d.2", 2)
    x = (x + w["a.position_embd.weight"][: len(x)])[:kept]
    for i in range(2):
        y = layer_norm(x, w, f"a.blk.{i}.ln1", 1e-5)
        q, k, v = (linear(y, w, f"a.blk.{i}.attn_{part}") for part in "qkv")
        x = x + linear(attention(q, k, v, HEADS), w, f"a.blk.{i}.attn_out")
        y = gelu(linear(layer_norm(x, w, f"a.blk.{i}.ln2", 1e-5), w, f"a.blk.{i}.ffn_up"))
        x = x + linear(y, w, f"a.blk.{i}.ffn_down")
    return x


def sound(seconds: float) -> np.ndarray:
    return np.random.default_rng(4).normal(0, 0.1, int(16_000 * seconds)).astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_qwen2_audio(tmp_path, device):
    w = weights(**{"mm.a.fc.weight": (COLS, WIDTH), "mm.a.fc.bias": (COLS,)})
    path = write_mmproj(tmp_path / "t.gguf", {**KEYS, "projector_type": "qwen2a"}, w)
    tower, backend = open_tower(path, device)
    with backend:
        # 171 frames of 10 ms, 86 states, 43 pairs.
        samples = sound(1.705)
        media = tower.prepare(samples)
        assert [*media.layout] == [Rows(43)]
        found = rows(tower, media)
        x = encoder(samples, w, 86).reshape(43, 2, WIDTH).mean(1)
        wanted = linear(layer_norm(x, w, "a.post_ln", 1e-5), w, "mm.a.fc")
        assert nmse(found, wanted) < 1e-10
        assert tower.prepare(sound(30)).rows == 750
        for seconds in (30.1, 0.01):
            with pytest.raises(MediaError, match=f"{seconds:.2f} seconds, the model takes"):
                tower.prepare(sound(seconds))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3, pytest.param(31, marks=pytest.mark.slow)])
@pytest.mark.parametrize("device", DEVICES)
def test_voxtral(tmp_path, device, seconds):
    shapes = {"mm.a.mlp.1.weight": (COLS, 4 * WIDTH), "mm.a.mlp.2.weight": (COLS, COLS)}
    w = weights(**shapes)
    path = write_mmproj(tmp_path / "t.gguf", {**KEYS, "projector_type": "voxtral"}, w)
    tower, backend = open_tower(path, device)
    with backend:
        samples, count = sound(seconds), math.ceil(seconds / 30)
        media = tower.prepare(samples)
        assert [*media.layout] == [Rows(375 * count)]
        found = rows(tower, media)
        # Windows do not see each other.
        windows = [samples[at : at + 480_000] for at in range(0, len(samples), 480_000)]
        states = np.concatenate([encoder(each, w, 1500) for each in windows])
        x = layer_norm(states, w, "a.post_ln", 1e-5).reshape(375 * count, 4 * WIDTH)
        wanted = linear(gelu(linear(x, w, "mm.a.mlp.1")), w, "mm.a.mlp.2")
        assert nmse(found, wanted) < 1e-10


def rms_norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


@pytest.mark.parametrize(
    ("seconds", "count"), [(1.705, 11), pytest.param(31.5, 188 + 10, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("device", DEVICES)
def test_ultravox(tmp_path, device, seconds, count):
    inner, joined = 10, 8 * WIDTH
    shapes = {
        "mm.a.norm_pre.weight": (joined,), "mm.a.mlp.1.weight": (2 * inner, joined),
        "mm.a.norm_mid.weight": (inner,), "mm.a.mlp.2.weight": (COLS, inner),
    }  # fmt: skip
    w = weights(**shapes)
    keys = {**KEYS, "projector_type": "ultravox", "audio.projector.stack_factor": 8}
    tower, backend = open_tower(write_mmproj(tmp_path / "t.gguf", keys, w), device)
    with backend:
        samples = sound(seconds)
        media = tower.prepare(samples)
        assert [*media.layout] == [Rows(count)]
        found = rows(tower, media)
    # Silence up to a whole hop, and no more; windows of 3000 frames do not see each other.
    frames = log_mel(np.pad(samples, (0, -len(samples) % 160)), BANDS)
    parts = []
    for at in range(0, len(frames), 3000):
        x = layer_norm(encode(frames[at : at + 3000], w, 1500), w, "a.post_ln", 1e-5)
        parts.append(np.pad(x, ((0, -len(x) % 8), (0, 0))).reshape(-1, joined))
    y = linear(rms_norm(np.concatenate(parts), w["mm.a.norm_pre.weight"]), w, "mm.a.mlp.1")
    values, gates = y[:, :inner], y[:, inner:]
    y = rms_norm(values * gates / (1 + np.exp(-gates)), w["mm.a.norm_mid.weight"])
    assert nmse(found, linear(y, w, "mm.a.mlp.2")) < 1e-10


def test_a_tower_with_other_sizes_is_refused(tmp_path):
    w = weights(**{"mm.a.fc.weight": (COLS, WIDTH + 4)})
    path = write_mmproj(tmp_path / "t.gguf", {**KEYS, "projector_type": "qwen2a"}, w)
    with pytest.raises(ModelError, match=r"mm\.a\.fc\.weight"):
        open_tower(path, "cpu")
