"""Videos as lists of pictures: rows, texts and positions are those of transformers' Qwen models.

Recorded by `tests/data/make_videos.py` with transformers 5.24.
"""

import io
import json
import math
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.tower_weights import frames, picture
from tests.models.test_recorded_towers import PLAIN
from tests.models.test_vision_towers import GEMMA3, gemma3_weights
from tests.models.towers import open_recorded, open_tower, rows, write_mmproj
from wgpu_backend.engine.media import MARKER, STAND_IN, Illustrations, Inserted, Placed, Run, place
from wgpu_backend.engine.towers import _check_fps
from wgpu_backend.errors import MediaError, OptionError
from wgpu_backend.files.media import pictures
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


COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250), (250, 250, 10), (90, 10, 90), (0, 0, 0)]


def animation(kind, milliseconds, size=(28, 28)):
    """An animation with one colour for each frame, shown so long."""
    shown = [Image.new("RGB", size, COLOURS[i % len(COLOURS)]) for i in range(len(milliseconds))]
    file = io.BytesIO()
    more = {"lossless": True} if kind == "WEBP" else {}
    shown[0].save(
        file, kind, save_all=True, append_images=shown[1:], duration=milliseconds, loop=0, **more
    )
    return file.getvalue()


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
@pytest.mark.parametrize("fps", [1.0, 2.0, 7.0, 10.0])
def test_an_animation_is_sampled_at_equal_intervals(kind, fps, tmp_path):
    milliseconds = [100, 300, 50, 20, 530, 40]
    data = animation(kind, milliseconds)
    ends = np.cumsum(milliseconds) / 1000
    # The frame that is shown at each time before the end.
    times = np.arange(math.ceil(ends[-1] * fps - 1e-9)) / fps
    wanted = [COLOURS[i] for i in np.searchsorted(ends, times + 1e-9, side="right")]
    path = tmp_path / "a"
    path.write_bytes(data)
    for source in (data, path, str(path)):
        found = read_frames(source, fps)
        assert [tuple(frame[0, 0]) for frame in found] == wanted
        assert {frame.shape for frame in found} == {(28, 28, 3)}


def test_a_still_picture_is_one_frame_and_a_folder_its_pictures(tmp_path):
    still = io.BytesIO()
    Image.new("RGB", (9, 7), COLOURS[1]).save(still, "PNG")
    assert np.array_equal(read_frames(still.getvalue()), np.full((1, 7, 9, 3), COLOURS[1]))
    for name, colour in zip(("2.png", "1.PNG", "10.png"), COLOURS, strict=False):
        Image.new("RGB", (9, 7), colour).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    found = [tuple(frame[0, 0]) for frame in read_frames(tmp_path)]
    assert found == [COLOURS[1], COLOURS[2], COLOURS[0]]


def test_animations_have_limits(monkeypatch):
    assert len(read_frames(animation("GIF", [1000] * 6), 128.0)) == MAX_FRAMES
    with pytest.raises(MediaError, match="more than 768 frames at 129 a second; use a smaller"):
        read_frames(animation("GIF", [1000] * 6), 129.0)
    monkeypatch.setattr(pictures, "MAX_DECODED_PIXELS", 4 * 28 * 28)
    with pytest.raises(MediaError, match="more than 4 frames of 28 x 28 pixels"):
        read_frames(animation("WEBP", [10] * 6), 1.0)
    monkeypatch.setattr(pictures, "MAX_FRAME_PIXELS", 3 * 28 * 28)
    with pytest.raises(MediaError, match="4 frames of 28 x 28 pixels, at most 2352"):
        read_frames(animation("GIF", [100] * 4), 10.0)


def test_bad_videos(tmp_path):
    small = [picture(28, 28)] * 2
    for wrong, message in (
        (5, "video: int, needs a list of pictures"),
        ("a.mp4", "a.mp4: No such file"),
        ("a\0.gif", "null"),
        (tmp_path, "has no pictures"),
        (b"", "video of 0 bytes: not an animated GIF"),
        (b"\0\0\0\x18ftypmp42" * 9, "make a folder of frames"),
        (animation("GIF", [100] * 9)[:300], "damaged animation"),
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
