"""The generator of pictures, and the checker that reads them. Needs no torch."""

import json
import random
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "train_picture_model"
MODULES = ("picture_grammar", "picture_draw", "picture_check", "picture_words")


@pytest.fixture(scope="module")
def made():
    """The example's modules, by name."""
    sys.path.insert(0, str(FOLDER))
    try:
        return {name: __import__(name) for name in MODULES}
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def drawn(made):
    """Scenes, each with a sentence and a picture."""
    rng = random.Random(4)
    scenes = [made["picture_grammar"].make_scene(rng) for _ in range(300)]
    return [(s, s.sentence(rng), made["picture_draw"].draw(s, rng)) for s in scenes]


def blurred(picture):
    for axis in (0, 1):
        padded = np.pad(picture, [(1, 1) if i == axis else (0, 0) for i in range(3)], "edge")
        parts = [np.take(padded, range(k, k + picture.shape[axis]), axis) for k in range(3)]
        picture = 0.15 * parts[0] + 0.7 * parts[1] + 0.15 * parts[2]
    return picture


@pytest.mark.slow
@pytest.mark.parametrize("change", ["none", "blur", "noise"])
def test_the_checker_accepts_what_the_generator_draws(made, drawn, change, rng):
    changes = {
        "none": lambda x: x,
        "blur": blurred,
        "noise": lambda x: np.clip(x + rng.normal(0, 0.02, x.shape), 0, 1),
    }
    find = made["picture_check"].problems
    found = [(said, find(s, changes[change](x).astype(np.float32))) for s, said, x in drawn]
    assert [each for each in found if each[1]] == []


@pytest.mark.slow
def test_the_checker_refuses_pictures_of_other_scenes(made, drawn):
    find = made["picture_check"].problems
    others = pairwise(drawn)
    accepted = [(a[1], b[1]) for a, b in others if not find(a[0], b[2])]
    assert accepted == []


def test_each_word_of_a_scene_counts(made):
    grammar, find = made["picture_grammar"], made["picture_check"].problems
    red, blue = grammar.Thing("circle", "red"), grammar.Thing("square", "blue", "large")
    picture = made["picture_draw"].draw(grammar.Scene((red, blue), "left"), random.Random(1))
    scenes = {
        "": grammar.Scene((red, blue), "left"),
        "not right": grammar.Scene((red, blue), "right"),
        "not above": grammar.Scene((red, blue), "above"),
        "red, not pink": grammar.Scene((grammar.Thing("circle", "pink"), blue), "left"),
        "not a ring": grammar.Scene((grammar.Thing("ring", "red"), blue), "left"),
        "not small": grammar.Scene((red, grammar.Thing("square", "blue", "small")), "left"),
        "is white, not black": grammar.Scene((red, blue), "left", "black"),
        "2 shapes, not 1": grammar.Scene((red,)),
    }
    for told, scene in scenes.items():
        found = " ".join(find(scene, picture))
        assert told in found if told else found == "", (told, found)


def test_sentences_have_known_words_and_the_right_articles(made, drawn):
    words = made["picture_words"]
    fillers = {"a", "an", "the"}
    known = fillers.union(words.VOCABULARY)
    for _, sentence, _ in drawn:
        said = sentence.split()
        assert set(said) <= known, sentence
        assert sum(word not in fillers for word in said) <= 20, sentence
        for article, word in pairwise(said):
            if article in ("a", "an"):
                assert (article == "an") == (word[0] in "aeiou"), sentence


def test_a_twentieth_is_held_out(drawn):
    assert 0.02 < sum(scene.held_out for scene, *_ in drawn) / len(drawn) < 0.09


def test_the_bundled_model_has_this_vocabulary(made):
    config = ROOT / "wgpu_backend" / "bundled" / "pictures" / "transformer" / "config.json"
    assert json.loads(config.read_text())["vocabulary"] == made["picture_words"].VOCABULARY
