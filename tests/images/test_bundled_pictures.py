"""The bundled picture model: it draws what sentences say, and computes what torch does."""

from pathlib import Path

import numpy as np
import pytest

import wgpu_backend.array as wx
from tests.imagine import example, held_out, looked_at
from wgpu_backend import images
from wgpu_backend.array import devices
from wgpu_backend.errors import OptionError
from wgpu_backend.images.bundled import bundled_pictures
from wgpu_backend.testing import nmse

DATA = Path(__file__).parent / "data" / "bundled.npz"
MAX_NBYTES = 3_000_000
COUNT = 12


@pytest.fixture(scope="module")
def pipeline():
    with images.load() as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def on_numpy():
    with images.load(device="cpu") as pipeline:
        yield pipeline


def test_the_folder_has_three_megabytes_at_most():
    files = [path for path in bundled_pictures().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MAX_NBYTES


@pytest.mark.parametrize("where", ["pipeline", "on_numpy"])
def test_the_network_computes_what_torch_does(request, where):
    # Made by `python examples/train_picture_model/reference.py`.
    kept, opened = np.load(DATA), request.getfixturevalue(where)
    with devices.preferring(opened.session):
        noise = np.array([0.7], np.float32)
        given = wx.array(kept["noisy"].astype("f4")), wx.array(noise), wx.array(kept["words"])
        assert nmse(opened.transformer(*given).numpy(), kept["drawn"]) <= 1e-9


@pytest.mark.slow
def test_pictures_show_what_their_sentences_say(pipeline):
    made = example()
    asked = held_out(made, COUNT, seed=1)
    found = looked_at(pipeline, asked, made["picture_check"].problems)
    wrong = [(sentence, problems) for sentence, problems, _ in found if problems]
    # `python -m tests.imagine` measures more of them.
    assert len(wrong) <= 1, wrong


@pytest.mark.slow
def test_a_sentence_is_followed(pipeline):
    made = example()
    thing, scene = made["picture_grammar"].Thing, made["picture_grammar"].Scene
    asked = scene((thing("circle", "red"), thing("square", "blue")), "left")
    options = {"seed": 1, "output_type": "np"}
    found = pipeline.generate("a red circle left of a blue square", **options).images[0]
    assert made["picture_check"].problems(asked, found) == []


@pytest.mark.slow
def test_a_seed_gives_the_same_picture_on_every_device(pipeline, on_numpy):
    options = {"seed": 7, "num_inference_steps": 4, "output_type": "np"}
    here, there = (each.generate("a green star", **options).images for each in (pipeline, on_numpy))
    assert np.abs(here - there).max() <= 1e-4


def test_guidance_of_one_needs_no_second_picture(on_numpy):
    shown = on_numpy.conditions(request(guidance_scale=1.0))
    assert {name: values.shape for name, values in shown.items()} == {"words": (1, 20)}
    shown = on_numpy.conditions(request(negative_prompt="red"))
    assert shown["words"].shape == (2, 20)
    assert (shown["words"].numpy()[0] > 0).sum() == 1


def request(**options):
    from wgpu_backend.images.requests import Request

    return Request("a red circle", **options)


def test_words_beyond_the_last_are_told(on_numpy, caplog):
    ids = on_numpy.encode("red " * 30 + "flying saucer")
    assert (ids > 0).all()
    assert "flying, saucer" in caplog.text
    assert "the prompt has 30 words, only the first 20 count" in caplog.text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"width": 128}, "128 x 64 pixels, this model generates 64 x 64"),
        ({"latents": np.zeros((1, 3, 8, 8))}, r"latents are \(1, 3, 8, 8\), needs"),
        ({"image": np.zeros((8, 8, 3), "u1"), "strength": 0.0}, "strength is 0.0"),
    ],
)
def test_what_it_cannot_draw_is_told(on_numpy, options, told):
    with pytest.raises(OptionError, match=told):
        on_numpy.generate("a red circle", num_inference_steps=1, **options)
