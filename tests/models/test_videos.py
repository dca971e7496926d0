"""Videos as lists of pictures: rows, texts and positions are those of transformers' Qwen models.

Recorded by `tests/data/make_videos.py` with transformers 5.24.
"""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.data.tower_weights import frames, picture
from tests.models.test_recorded_towers import PLAIN
from tests.models.test_vision_towers import GEMMA3, gemma3_weights
from tests.models.towers import open_recorded, open_tower, rows, write_mmproj
from wgpu_backend.engine.media import MARKER, STAND_IN, Illustrations, Inserted, Placed, Run, place
from wgpu_backend.engine.towers import _check_fps
from wgpu_backend.errors import MediaError, OptionError
from wgpu_backend.files.media.pictures import MAX_FRAMES, read_frames
from wgpu_backend.nn.tower import Rows
from wgpu_backend.testing import nmse

DEVICES = ["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)]
KINDS = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"]
FPS = 3.0
TOKENS = {"<|vision_start|>": 4, "<|vision_end|>": 6}


@cache
def recorded():
    with np.load(Path(__file__).parents[1] / "data/videos.npz") as file:
        arrays = dict(file)
    return json.loads(arrays.pop("facts").tobytes()), arrays


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KINDS)
def test_rows_and_text_are_those_of_transformers(name, device, tmp_path):
    facts, arrays = recorded()
    tower, backend = open_recorded(tmp_path, recorded()[0], name, device, video=True)
    with backend:
        # Five frames: the last is repeated.
        media = tower.prepare_video(frames(5, 41, 70), FPS)
        found = rows(tower, media)
    assert nmse(found, arrays[name]) < 1e-11
    spelled = ("<|video_pad|>" * x.count if isinstance(x, Rows) else x for x in media.layout)
    assert "".join(spelled) == facts[name]["text"]


@pytest.mark.parametrize("name", KINDS)
def test_positions_are_those_of_transformers(name, tmp_path):
    tower, backend = open_recorded(tmp_path, recorded()[0], name, "cpu", video=True)
    with backend:
        media = tower.prepare_video(frames(5, 41, 70), FPS)
    runs, at, first = [], 1, 0
    for part in media.layout:
        if isinstance(part, Rows):
            runs.append(Run(at, first, part))
            at, first = at + part.count, first + part.count
        else:
            at += len(re.findall(r"<[^>]*>", part))
    inserted = Inserted([Placed(media, tower, runs)], tower.cols, True)
    wanted = recorded()[1][f"{name}.positions"]
    whole = inserted.positions(0, at + 1)
    assert np.array_equal(whole.T, wanted)
    # A pass that begins or ends within a frame.
    for start in (3, 9, at - 2):
        assert np.array_equal(inserted.positions(start, at), whole[start:at])


@pytest.mark.parametrize("name", KINDS)
def test_pixels_are_those_of_transformers(name, tmp_path):
    tower, backend = open_recorded(tmp_path, recorded()[0], name, "cpu", video=True)
    with backend:
        media = tower.prepare_video(frames(5, 41, 70), FPS)
        order = tower.order(*media.arrays["patches"].shape[1:3])
    pairs = media.arrays["patches"].shape[0]
    sums = sum(
        media.arrays[part].astype(np.float64).sum(-1).reshape(pairs, len(order), -1)
        for part in ("patches", "later")
    )
    raster = np.empty_like(sums)
    raster[:, order] = sums
    wanted = recorded()[1][f"{name}.pixels"].reshape(raster.shape)
    assert np.abs(raster - wanted).max() < 1e-9


def test_text_after_a_video_continues_after_its_largest_position():
    # Wang et al. 2024, §2.1. Nine pairs of frames, each of 2 x 3 rows; text is at 0 and after.
    run = Run(1, 0, Rows(54, (9, 2, 3), 1.5))
    inserted = Inserted([Placed(None, None, [run])], 8, True)
    found = inserted.positions(0, 57)
    assert found[1].tolist() == [1, 1, 1]
    # The last frame is at floor(8 · 1.5) after the first.
    assert found[54].tolist() == [13, 2, 3]
    assert found[55:].tolist() == [[14] * 3, [15] * 3]


class Words:
    """A tokenizer that has a token for each control token and each other letter."""

    def encode(self, text, add_special=False, parse_special=True):
        assert parse_special
        assert not add_special
        return [TOKENS.get(x, 9) for x in re.findall(r"<\|.*?\|>|.", text)]


TEMPLATE = (
    "{% for part in messages[0].content %}{% if part.type == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% elif part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("name", KINDS)
def test_a_video_and_a_picture_of_a_conversation(name, tmp_path):
    parts = [
        {"type": "video", "video": frames(4, 28, 28), "fps": FPS},
        {"type": "image", "image": picture(28, 28)},
    ]
    shown = Illustrations([{"role": "user", "content": parts}])
    assert [(part.kind, part.fps) for part in shown.parts] == [("video", FPS), ("image", 2.0)]
    tower, backend = open_recorded(tmp_path, recorded()[0], name, "cpu", video=True)
    with backend:
        video = tower.prepare_video(shown.parts[0].source, FPS), tower
        still = tower.prepare(shown.parts[1].source), tower
        texts = [video[0].markers, (tower.placeholder,)]
        messages, markers, numbers = shown.spell(shown.messages, TEMPLATE, texts)
    assert numbers == [0, 1]
    assert messages == shown.messages
    whole = "<|vision_start|><|video_pad|><|vision_end|>"
    text = f"{whole}<|vision_start|><|image_pad|><|vision_end|>"
    prompt = place(text, [video, still], Words(), markers)
    # Qwen3-VL's times are text before each pair of frames.
    each = [9] * len("<0.2 seconds>") + [4, 6]
    wanted = [*each, *each, 4, 6] if name == "qwen3-vl" else [4, 6, 4, 6]
    assert [token for token in prompt.tokens if token < STAND_IN] == wanted
    # A raw prompt may have another marker, or the token alone.
    for marker in (MARKER, "<|video_pad|>"):
        alone = place(f"a{marker}", [video], Words(), [MARKER, *markers])
        whole_prompt = place(f"a{whole}", [video], Words(), [MARKER, *markers])
        assert alone.tokens == whole_prompt.tokens


def test_bad_videos(tmp_path):
    small = [picture(28, 28)] * 2
    for wrong, message in (
        ("a.mp4", "video: str, needs a list of pictures"),
        ([], f"0 frames, needs 1 to {MAX_FRAMES}"),
        (small * 400, "800 frames"),
        ([*small, picture(28, 30)], "frame 2 has 30 x 28 pixels, frame 0 has 28 x 28"),
        ([np.zeros((4000, 4000, 3), np.uint8)] * 20, "20 frames of 4000 x 4000 pixels"),
    ):
        with pytest.raises(MediaError, match=message):
            read_frames(wrong)
    assert np.array_equal(read_frames(np.stack(small)), small)
    for fps in (0, -1, float("nan"), float("inf"), "2", True, None):
        with pytest.raises(OptionError, match="fps: "):
            _check_fps(fps)
    tower, backend = open_recorded(tmp_path, recorded()[0], "qwen3-vl", "cpu", video=True)
    with backend, pytest.raises(OptionError, match="1 frame, this model needs at least 2"):
        tower.prepare_video(small[:1], 2.0)


def test_a_tower_without_videos_says_so(tmp_path):
    tower, backend = open_tower(write_mmproj(tmp_path / "t.gguf", GEMMA3, gemma3_weights()), "cpu")
    with backend, pytest.raises(OptionError, match="'gemma3' takes no videos"):
        tower.prepare_video([PLAIN], 2.0)
