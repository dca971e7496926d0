"""Scenes of one or two shapes, and sentences that describe them."""

import random
from dataclasses import dataclass
from zlib import crc32

from shapes import SHAPES

COLOURS = {
    "red": (220, 35, 40),
    "orange": (250, 140, 15),
    "yellow": (250, 225, 40),
    "green": (35, 165, 65),
    "blue": (35, 75, 225),
    "purple": (135, 40, 175),
    "pink": (250, 130, 190),
    "white": (255, 255, 255),
    "black": (15, 15, 20),
    "grey": (128, 128, 132),
}
RADII = {"small": 7.0, None: 10.0, "large": 13.5}  # pixels
SIZES = {"small": ("small", "little", "tiny"), "large": ("large", "big", "huge")}
SPELLINGS = {"grey": ("grey", "gray")}
PLACES = {
    "middle": ("in the middle", "in the center", "in the centre"),
    "top": ("at the top",),
    "bottom": ("at the bottom",),
    "left": ("on the left", "on the left side"),
    "right": ("on the right", "on the right side"),
    "top left": ("in the top left corner", "in the top left", "at the top left"),
    "top right": ("in the top right corner", "in the top right", "at the top right"),
    "bottom left": ("in the bottom left corner", "in the bottom left", "at the bottom left"),
    "bottom right": ("in the bottom right corner", "in the bottom right", "at the bottom right"),
}
APART = (
    ("left", "right"),
    ("top", "bottom"),
    ("top left", "top right"),
    ("top left", "bottom left"),
    ("top left", "bottom right"),
    ("top right", "bottom left"),
    ("top right", "bottom right"),
    ("bottom left", "bottom right"),
)  # places that two shapes can have at once
RELATIONS = {
    "left": ("left of", "to the left of", "on the left of"),
    "right": ("right of", "to the right of", "on the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
    "beside": ("next to", "beside"),
    None: ("and",),
}
TURNED = {
    "left": ("to its left", "left of it"),
    "right": ("to its right", "right of it"),
    "above": ("above it",),
    "below": ("below it", "under it"),
    "beside": ("next to it", "beside it"),
}  # what follows the shape when the other one is named first
BACKGROUND = ("on a {} background", "on {}", "with a {} background")
OPENINGS = ("", "", "", "", "", "a picture of ", "a drawing of ", "draw ")
HELD_OUT = 20  # one combination in so many is never trained on
STRONG = 110.0  # distance of two colours (of 442) that are told apart with ease


@dataclass(frozen=True, slots=True)
class Thing:
    """One shape; the sentence leaves attributes open that are None."""

    shape: str
    colour: str | None
    size: str | None = None
    place: str | None = None

    def phrase(self, rng: random.Random) -> str:
        """Name the thing in words, as "a small red circle in the middle"."""
        words = [rng.choice(SIZES[self.size])] if self.size else []
        if self.colour:
            words.append(rng.choice(SPELLINGS.get(self.colour, (self.colour,))))
        words.append(self.shape)
        place = [rng.choice(PLACES[self.place])] if self.place else []
        return " ".join([article(words[0]), *words, *place])


@dataclass(frozen=True, slots=True)
class Scene:
    """One or two things, the relation of the first to the second, and the background."""

    things: tuple[Thing, ...]
    relation: str | None = None
    background: str | None = None

    @property
    def held_out(self) -> bool:
        """Return whether the combination of colours, shapes and relation is kept from training."""
        parts = [f"{thing.colour} {thing.shape} {thing.place}" for thing in self.things]
        return crc32(f"{parts} {self.relation}".encode()) % HELD_OUT == 0

    def sentence(self, rng: random.Random) -> str:
        """Draw a sentence that describes the scene."""
        return self.said(rng)[0]

    def said(self, rng: random.Random) -> tuple[str, tuple[int, ...]]:
        """Draw a sentence that describes the scene, and return the order of its things."""
        order = tuple(range(len(self.things)))
        if self.relation is not None and rng.random() < 0.25:
            order = order[::-1]
        phrases = [self.things[n].phrase(rng) for n in order]
        behind = f" {rng.choice(BACKGROUND).format(self.background)}" if self.background else ""
        text = self._joined(phrases, order[0] > 0, rng) + behind.replace("a o", "an o")
        return rng.choice(OPENINGS) + text, order

    def _joined(self, phrases: list[str], is_turned: bool, rng: random.Random) -> str:
        if len(phrases) == 1:
            return phrases[0]
        if is_turned:
            return f"{phrases[0]} with {phrases[1]} {rng.choice(TURNED[self.relation])}"
        return f"{phrases[0]} {rng.choice(RELATIONS[self.relation])} {phrases[1]}"


def article(word: str) -> str:
    """Return "a" or "an", whichever stands before `word`."""
    return "an" if word[0] in "aeiou" else "a"


def distance(one: str, other: str) -> float:
    """Return the distance of two colours: the line between their RGB values of 0 to 255."""
    return sum((a - b) ** 2 for a, b in zip(COLOURS[one], COLOURS[other], strict=True)) ** 0.5


def make_scene(rng: random.Random) -> Scene:
    """Draw a scene; one in three has a single thing."""
    background = rng.choice(tuple(COLOURS)) if rng.random() < 0.35 else None
    if rng.random() < 0.33:
        place = rng.choice((None, *PLACES)) if rng.random() < 0.7 else None
        return Scene((_thing(rng, background, place),), background=background)
    if rng.random() < 0.2:
        places = list(rng.choice(APART))
        rng.shuffle(places)
        things = tuple(_thing(rng, background, place) for place in places)
        return Scene(things, background=background)
    things = (_thing(rng, background), _thing(rng, background))
    relations = ("left", "right", "above", "below", "left", "right", "above", "below", "beside")
    return Scene(things, rng.choice((*relations, None, None)), background)


def _thing(rng: random.Random, background: str | None, place: str | None = None) -> Thing:
    """Draw a thing whose colour stands out from the background."""
    fit = [name for name in COLOURS if background is None or distance(name, background) > STRONG]
    colour = rng.choice(fit) if rng.random() < 0.94 else None
    size = rng.choice(tuple(SIZES)) if rng.random() < 0.35 else None
    return Thing(rng.choice(SHAPES), colour, size, place)


def words() -> list[str]:
    """List all words of sentences, without articles, in alphabetical order."""
    texts = [*SHAPES, *COLOURS, "gray", "with", "on background", *OPENINGS]
    for table in (SIZES, PLACES, RELATIONS, TURNED):
        texts += [phrase for phrases in table.values() for phrase in phrases]
    found = {word for text in texts for word in text.split()}
    return sorted(found - {"a", "an", "the"})
