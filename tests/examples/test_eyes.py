"""The grammar of pictures and questions, and the bundled model that answers them."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest

import wgpu_backend as wb
from wgpu_backend.engine.loading import bundled
from wgpu_backend.files.gguf.reader import open_gguf

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "train_eyes_model"
COLOURS = {"red": (220, 30, 30), "green": (40, 160, 60), "blue": (40, 80, 220)}


@pytest.fixture(scope="module")
def data():
    """The example's grammar. Needs no torch."""
    sys.path.insert(0, str(FOLDER))
    try:
        return __import__("eyes_data")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def eyes():
    with wb.load("eyes", device="cpu") as model:
        yield model


def square(colour, size=(96, 96), background=(255, 255, 255)):
    """A square in the middle of a picture: (height, width, 3), u8."""
    picture = np.full((*size, 3), background, np.uint8)
    (height, width), half = size, min(size) // 4
    picture[height // 2 - half : height // 2 + half, width // 2 - half : width // 2 + half] = colour
    return picture


def ask(model, question, *pictures, late=False):
    parts = [{"type": "image", "image": picture} for picture in pictures]
    text = {"type": "text", "text": question}
    content = [text, *parts] if late else [*parts, text]
    messages = [{"role": "user", "content": content}]
    return model.chat(messages, options={"temperature": 0, "num_predict": 32})


def test_pictures_show_what_scenes_say(data):
    rng = random.Random(5)
    for _ in range(200):
        scene = data.draw_scene(rng)
        picture = data.draw_picture(scene, rng)
        height, width = picture.shape[:2]
        wanted = np.array(data.COLOURS[scene.background])
        corner = picture[:4, :4].reshape(-1, 3).mean(0)
        assert np.abs(corner - wanted).max() <= data.JITTER + 3 * data.NOISE
        near = np.abs(picture - np.array(data.COLOURS[scene.colour])).max(-1) <= 2 * data.JITTER
        assert near.mean() > (0.03 if scene.shape else 0.5)
        assert min(height, width) >= 64


def test_answers_are_english(data):
    rng = random.Random(6)
    for _ in range(500):
        scene = data.draw_scene(rng)
        for answer in scene.answers().values():
            assert answer[0].isupper()
            assert answer.endswith(".")
            assert " a orange" not in answer.lower()
        for kind, question, answer in data.draw_turns(scene, rng):
            assert question
            assert "{" not in question
            assert answer == scene.answers()[kind]


def test_the_bundled_files_are_small_and_fit():
    tower = bundled("eyes").with_name("eyes-mmproj.gguf")
    assert bundled("eyes").stat().st_size + tower.stat().st_size <= 3_000_000
    with open_gguf(bundled("eyes")) as text, open_gguf(tower) as seen:
        assert text.config.uint("embedding_length") == seen.config.uint("vision.projection_dim")


@pytest.mark.parametrize("colour", COLOURS)
def test_the_bundled_model_names_the_colour(eyes, colour):
    assert ask(eyes, "Which colour?", square(COLOURS[colour])) == f"{colour.capitalize()}."


@pytest.mark.parametrize("colour", COLOURS)
def test_the_question_may_be_before_the_picture(eyes, colour):
    shown = square(COLOURS[colour])
    assert ask(eyes, "Which colour?", shown, late=True) == f"{colour.capitalize()}."
    wanted = f"A {colour} square on a white background."
    assert ask(eyes, "What is this?", shown, late=True) == wanted


def test_the_bundled_model_describes_a_picture_of_another_form(eyes):
    picture = square(COLOURS["blue"], size=(120, 150))
    assert ask(eyes, "What is this?", picture) == "A blue square on a white background."


@pytest.mark.parametrize("late", [False, True])
def test_the_picture_that_was_shown_last_is_meant(eyes, data, late):
    rng, right = random.Random(78), 0
    for _ in range(12):
        first, second = data.draw_scene(rng), data.draw_scene(rng)
        shown = [
            {"type": "image", "image": data.draw_picture(each, rng)} for each in (first, second)
        ]
        text = {"type": "text", "text": "Which colour?"}
        turns = [[part, text][:: -1 if late else 1] for part in shown]
        messages = [
            {"role": "user", "content": turns[0]},
            {"role": "assistant", "content": first.answers()["colour"]},
            {"role": "user", "content": turns[1]},
        ]
        answer = eyes.chat(messages, options={"temperature": 0, "num_predict": 32})
        right += answer == second.answers()["colour"]
    assert right >= 10


def test_without_a_picture_the_bundled_model_asks_for_one(eyes, data):
    assert ask(eyes, "Which colour?") == data.NO_PICTURE


@pytest.mark.parametrize("late", [False, True])
def test_most_drawn_pictures_are_described(eyes, data, late):
    rng, right = random.Random(77), 0
    for _ in range(12):
        scene = data.draw_scene(rng)
        answer = ask(eyes, "Which colour?", data.draw_picture(scene, rng), late=late)
        right += answer == scene.answers()["colour"]
    assert right >= 10
