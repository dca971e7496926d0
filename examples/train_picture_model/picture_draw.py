"""Draw a scene: choose what its sentence leaves open, place the shapes and paint them."""

import math
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from picture_grammar import COLOURS, RADII, STRONG, Scene, Thing, distance
from shapes import SIDE, coverage, extent

DEFAULTS = ("white", "black", "grey")  # backgrounds, the first that is free
OPEN = ("black", "white")  # colours of things that have none, the first that stands out
GAP = 2.0  # pixels between two shapes, at the least
GRID = 4  # middles of shapes are multiples of so many pixels


@dataclass(frozen=True, slots=True)
class Drawn:
    """A shape as it is painted: middle and radius in pixels, y downwards."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float

    @property
    def extent(self) -> float:
        """Return half of the larger side, in pixels."""
        return extent(self.shape, self.radius)


def draw(scene: Scene, rng: random.Random) -> NDArray[np.float32]:
    """Paint `scene`: (SIDE, SIDE, 3), 0 to 1."""
    background = background_of(scene)
    return paint(background, place(scene, background, rng))


def background_of(scene: Scene) -> str:
    """Return the background of a scene; by default the first colour that no thing has."""
    taken = {thing.colour for thing in scene.things}
    return scene.background or next(colour for colour in DEFAULTS if colour not in taken)


def paint(background: str, things: list[Drawn]) -> NDArray[np.float32]:
    """Lay shapes one after another on a background; edges are smooth."""
    picture = np.broadcast_to(_rgb(background), (SIDE, SIDE, 3))
    for thing in things:
        share = coverage(thing.shape, thing.x, thing.y, thing.radius)[..., None]
        picture = picture * (1 - share) + _rgb(thing.colour) * share
    return np.ascontiguousarray(picture, np.float32)


def _rgb(colour: str) -> NDArray[np.float32]:
    return np.array(COLOURS[colour], np.float32) / 255


def place(scene: Scene, background: str, rng: random.Random) -> list[Drawn]:
    """Choose middles and open colours, so that nothing overlaps or is cut off."""
    colours = [_colour(thing, background) for thing in scene.things]
    radii = [RADII[thing.size] for thing in scene.things]
    extents = [extent(thing.shape, r) for thing, r in zip(scene.things, radii, strict=True)]
    if len(scene.things) == 1 or scene.things[0].place is not None:
        middles = _apart([thing.place for thing in scene.things], extents, rng)
    else:
        middles = _related(scene.relation, extents, rng)
    return [
        Drawn(thing.shape, colour, x, y, r)
        for thing, colour, (x, y), r in zip(scene.things, colours, middles, radii, strict=True)
    ]


def _colour(thing: Thing, background: str) -> str:
    """Return the colour of a thing; by default black, or white on a dark background."""
    return thing.colour or next(c for c in OPEN if distance(c, background) > STRONG)


def _apart(
    places: list[str | None], extents: list[float], rng: random.Random
) -> list[tuple[float, float]]:
    """Draw middles at places, again until the shapes do not touch."""
    while True:
        middles = [_at(p, half, rng) for p, half in zip(places, extents, strict=True)]
        if len(middles) == 1 or _gap(middles, extents) >= GAP:
            return middles


def _gap(middles: list[tuple[float, float]], extents: list[float]) -> float:
    (x0, y0), (x1, y1) = middles
    return max(abs(x1 - x0), abs(y1 - y0)) - sum(extents)


def _at(where: str | None, half: float, rng: random.Random) -> tuple[float, float]:
    """Draw a middle for a shape of half extent `half` at a place."""
    words = where.split() if where else []
    reach = 1 if where else 2
    x = _along("left" in words, "right" in words, half, reach, rng)
    return x, _along("top" in words, "bottom" in words, half, reach, rng)


def _along(low: bool, high: bool, half: float, reach: int, rng: random.Random) -> float:
    """Draw a place on one axis: next to either end, or around the middle."""
    near = GRID * (math.ceil(half / GRID) + rng.randint(0, 1))
    if low or high:
        return near if low else SIDE - near
    return SIDE / 2 + GRID * rng.randint(-reach, reach)


def _related(
    relation: str | None, extents: list[float], rng: random.Random
) -> list[tuple[float, float]]:
    """Draw the middles of two shapes that have the relation."""
    if relation in (None, "beside"):  # as a reader of the sentence would lay them
        relation = "left"
    if relation in ("right", "below"):
        swapped = _related({"right": "left", "below": "above"}[relation], extents[::-1], rng)
        return swapped[::-1]
    one, two = extents
    while True:
        first, second = (SIDE / 4 * n + GRID * rng.randint(-1, 1) for n in (1, 3))
        if first >= one and second <= SIDE - two and second - first >= one + two + GAP:
            break
    across = [SIDE / 2 + GRID * rng.randint(-1, 1) for _ in extents]
    points = list(zip((first, second), across, strict=True))
    return points if relation == "left" else [(x, y) for y, x in points]
