"""Draws a scene: chooses what its sentence leaves open, places the shapes, paints them."""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from picture_grammar import COLOURS, RADII, STRONG, Scene, Thing, distance
from shapes import SIDE, coverage, extent

DEFAULTS = ("white", "black", "grey")  # backgrounds, the first that is free
GAP = 2.0  # pixels between two shapes, at the least
SLACK = 5.0  # how far a shape with a place may stray from it, in pixels
SKEW = 6.0  # how far two shapes side by side may differ in height, or above each other sidewards


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
        """Half of its larger side, in pixels."""
        return extent(self.shape, self.radius)


def draw(scene: Scene, rng: random.Random) -> NDArray[np.float32]:
    """Paint `scene`: (SIDE, SIDE, 3), 0 to 1."""
    background = background_of(scene)
    return paint(background, place(scene, background, rng))


def background_of(scene: Scene) -> str:
    """What is behind a scene: if it does not say, the first that no thing has the colour of."""
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
    """Choose radii, middles and open colours, so that nothing overlaps or is cut off."""
    chosen = [_chosen(thing, background, rng) for thing in scene.things]
    extents = [extent(shape, radius) for shape, _, radius in chosen]
    if len(chosen) == 1 or scene.things[0].place is not None:
        middles = _apart([thing.place for thing in scene.things], extents, rng)
    else:
        middles = _related(scene.relation, extents, rng)
    return [Drawn(s, c, x, y, r) for (s, c, r), (x, y) in zip(chosen, middles, strict=True)]


def _chosen(thing: Thing, background: str, rng: random.Random) -> tuple[str, str, float]:
    fit = [colour for colour in COLOURS if distance(colour, background) > STRONG]
    colour = thing.colour or rng.choice(fit)
    return thing.shape, colour, rng.uniform(*RADII[thing.size])


def _apart(
    places: list[str | None], extents: list[float], rng: random.Random
) -> list[tuple[float, float]]:
    """Middles at places, closer to the edges as long as they would touch."""
    slack = SLACK
    while True:
        middles = [_at(p, half, slack, rng) for p, half in zip(places, extents, strict=True)]
        if len(middles) == 1 or _gap(middles, extents) >= GAP:
            return middles
        slack *= 0.9


def _gap(middles: list[tuple[float, float]], extents: list[float]) -> float:
    (x0, y0), (x1, y1) = middles
    return max(abs(x1 - x0), abs(y1 - y0)) - sum(extents)


def _at(where: str | None, half: float, slack: float, rng: random.Random) -> tuple[float, float]:
    """Draw a middle for a shape of half extent `half` at a place."""
    if where is None:
        return rng.uniform(half, SIDE - half), rng.uniform(half, SIDE - half)
    ends = {"left": half, "right": SIDE - half, "top": half, "bottom": SIDE - half}
    inward = {"left": 1, "right": -1, "top": 1, "bottom": -1}
    found = {"x": SIDE / 2 + rng.uniform(-3, 3), "y": SIDE / 2 + rng.uniform(-3, 3)}
    for word in where.split():
        if word in ends:
            axis = "x" if word in ("left", "right") else "y"
            found[axis] = ends[word] + inward[word] * rng.uniform(0, slack)
    return found["x"], found["y"]


def _related(
    relation: str | None, extents: list[float], rng: random.Random
) -> list[tuple[float, float]]:
    """Middles of two shapes of which the first lies to the second as `relation` says."""
    if relation is None:
        relation = rng.choice(("left", "right", "above", "below"))
    if relation == "beside":
        relation = rng.choice(("left", "right"))
    if relation in ("right", "below"):
        swapped = _related({"right": "left", "below": "above"}[relation], extents[::-1], rng)
        return swapped[::-1]
    one, two = extents
    free = SIDE - 2 * (one + two) - GAP
    before, between = sorted(rng.uniform(0, free) for _ in range(2))
    along = (before + one, between + 2 * one + GAP + two)
    level = rng.uniform(max(extents), SIDE - max(extents))
    across = [
        float(np.clip(level + rng.uniform(-SKEW, SKEW) / 2, half, SIDE - half)) for half in extents
    ]
    points = list(zip(along, across, strict=True))
    return points if relation == "left" else [(x, y) for y, x in points]
