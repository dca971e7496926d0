"""Qwen2.5-VL with windows within a picture, and places with three axes, beside transformers'."""

from pathlib import Path

import numpy as np
import pytest

import wgpu_backend.array as wx
from tests.images.data.make_qwen_vl import GRID, IDS, MARKER, TEXT, VISION, drawn, patches
from tests.images.tiny import nmse
from wgpu_backend.array import devices
from wgpu_backend.array.session import Session
from wgpu_backend.errors import ShapeError
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.models.images.qwen_vl import QwenVLEncoder, picture_places, windows


@pytest.fixture
def session(executor):
    """New arrays lie on NumPy and on each profile of the adapter in turn."""
    made = Session(executor)
    with devices.preferring(made):
        yield made


def encoder():
    config = {"text_config": TEXT, "vision_config": VISION, "image_token_id": MARKER}
    made = QwenVLEncoder(Settings("config.json", config))
    slots = [(s.path, s.array.shape) for s in made.slots()]
    return made.load_weights({name: wx.array(drawn(name, shape)) for name, shape in slots})


def test_states_of_a_text_with_a_picture_are_those_of_transformers(session):
    states = encoder()(np.array(IDS), patches(), GRID)
    with np.load(Path(__file__).parent / "data/qwen_vl.npz") as known:
        assert len(states) == len(known.files)
        for i, state in enumerate(states):
            assert nmse(state.numpy(), known[f"state{i}"]) <= 1e-10


def test_a_text_with_places_for_another_picture_is_refused(session):
    with pytest.raises(ShapeError, match="has 14 image tokens, the picture has 15"):
        encoder()(np.array(IDS[:3] + IDS[4:]), patches(), GRID)


def test_windows_are_cut_at_the_border_of_a_picture():
    order, ends = windows(3, 5, 2)
    assert order.tolist() == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]
    assert ends == [4, 8, 10, 12, 14, 15]


def test_places_of_a_picture_are_a_grid_and_the_text_goes_on_behind_it():
    places = picture_places(np.array([1, 9, 9, 9, 9, 9, 9, 2]), 9, (1, 4, 6), 2)
    assert places.tolist() == [
        [0, 0, 0],
        *([1, 1 + y, 1 + x] for y in range(2) for x in range(3)),
        [4, 4, 4],
    ]
