"""Check from the pixels alone whether an image shows its scene.

What differs from the background falls into patches that hang together; the colour of each is the
middle of its pixels, its shape the one of our shapes that fits it best, moved and scaled.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from picture_draw import background_of
from picture_grammar import COLOURS, RADII, Scene, Thing
from shapes import SCALES, SHAPES, SIDE, coverage

Picture = NDArray[np.float32]
Shares = NDArray[np.float32]
LEAST_PIXELS = 12  # a patch of fewer is a speck
SPECK = 4  # and one of this few is noise
LEAST_CONTRAST = 0.16  # from the background, of sqrt(3)
LEAST_FIT = 0.72  # of a shape: what both cover, as a share of what either covers
FAR_OFF = 0.28  # a colour this far from all of ours is none of them
SMALL, LARGE = (8.6, 12.0)  # radii that divide the sizes
THIRD = SIDE / 3


@dataclass(frozen=True, slots=True)
class Seen:
    """A shape that was found in a picture; x, y and radius in pixels."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float
    fit: float


def problems(scene: Scene, picture: Picture) -> list[str]:
    """List what is wrong with a picture, (SIDE, SIDE, 3) of 0 to 1; nothing if it is right."""
    background, seen = look(picture)
    found: list[str] = []
    if background != background_of(scene):
        found.append(f"the background is {background}, not {background_of(scene)}")
    if len(seen) != len(scene.things):
        return [*found, f"{len(seen)} shapes, not {len(scene.things)}"]
    orders = [seen, seen[::-1]] if len(seen) == 2 else [seen]
    return found + min((_differences(scene, order) for order in orders), key=len)


def _differences(scene: Scene, seen: list[Seen]) -> list[str]:
    """Compare each thing with the shape seen in its stead, then how they lie."""
    found: list[str] = []
    for thing, shape in zip(scene.things, seen, strict=True):
        if shape.fit < LEAST_FIT:
            found.append(f"no shape of ours for the {thing.shape}: {shape.fit:.2f} {shape.shape}")
        elif shape.shape != thing.shape:
            found.append(f"a {shape.shape}, not a {thing.shape}")
        if thing.colour not in (None, shape.colour):
            found.append(f"the {thing.shape} is {shape.colour}, not {thing.colour}")
        if not _has_size(thing, shape.radius):
            found.append(f"the {thing.shape} is not {thing.size}: radius {shape.radius:.1f}")
        if thing.place is not None and not _is_at(thing.place, shape):
            found.append(f"the {thing.shape} at {shape.x:.0f}, {shape.y:.0f}, not {thing.place}")
    if scene.relation is not None and not _lies(scene.relation, *seen):
        found.append(f"the first shape is not {scene.relation} the second")
    return found


def _has_size(thing: Thing, radius: float) -> bool:
    """Return whether a radius has the size; without a size, whether it is in the usual range."""
    limits = {"small": (0, SMALL), "large": (LARGE, SIDE)}
    least, most = limits.get(thing.size or "", (RADII["small"] + 0.4, RADII["large"] - 0.4))
    return least <= radius <= most


def _is_at(place: str, seen: Seen) -> bool:
    """Return whether the middle of a shape is at `place`."""
    where = set(place.split())
    if where == {"middle"}:
        return max(abs(seen.x - SIDE / 2), abs(seen.y - SIDE / 2)) < SIDE / 8
    half = SCALES.get(seen.shape, 1.0) * seen.radius
    room = {
        "left": seen.x - half,
        "right": SIDE - seen.x - half,
        "top": seen.y - half,
        "bottom": SIDE - seen.y - half,
    }
    sideways = max(
        abs(seen.x - SIDE / 2) if not where & {"left", "right"} else 0,
        abs(seen.y - SIDE / 2) if not where & {"top", "bottom"} else 0,
    )
    return all(room[side] < SIDE / 8 for side in where) and sideways < SIDE / 8


def _lies(relation: str, one: Seen, other: Seen) -> bool:
    """Return whether one shape is clearly in the relation to the other."""
    right, down = other.x - one.x, other.y - one.y
    if relation == "beside":
        return abs(right) > abs(down)
    towards = {"left": right, "right": -right, "above": down, "below": -down}[relation]
    return towards > (abs(down) if relation in ("left", "right") else abs(right))


def look(picture: Picture) -> tuple[str, list[Seen]]:
    """Name the background and all shapes of a picture, larger ones first."""
    border = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
    behind = np.median(border, axis=0)
    contrast = np.sqrt(((picture - behind) ** 2).sum(axis=-1))
    patches = [patch for patch in _patches(contrast > LEAST_CONTRAST) if patch.sum() > SPECK]
    seen = [_seen(picture, behind, contrast, patch) for patch in patches]
    return _named(behind), sorted(seen, key=lambda shape: -shape.radius)


def _patches(mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Divide a mask into connected parts, corners included."""
    numbers = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        padded = np.pad(numbers, 1)
        spread = [
            padded[1 + dy : padded.shape[0] - 1 + dy, 1 + dx : padded.shape[1] - 1 + dx]
            for dy in (-1, 0, 1)
            for dx in (-1, 0, 1)
        ]
        larger = np.where(mask, np.maximum.reduce(spread), 0)
        if np.array_equal(larger, numbers):
            return [numbers == number for number in np.unique(numbers) if number]
        numbers = larger


def _seen(picture: Picture, behind: Picture, contrast: Shares, patch: NDArray[np.bool_]) -> Seen:
    """Name the colour and the shape of one patch."""
    strong = patch & (contrast >= 0.85 * np.quantile(contrast[patch], 0.9))
    colour = np.median(picture[strong], axis=0)
    away = colour - behind
    shares = np.clip((picture - behind) @ away / (away @ away), 0, 1) * _grown(patch)
    if patch.sum() < LEAST_PIXELS:
        return Seen("speck", _named(colour), 0, 0, 0, 0)
    fits = [(_fit(shape, shares), shape) for shape in SHAPES]
    (fit, x, y, radius), shape = max(fits)
    return Seen(shape, _named(colour), x, y, radius, fit)


def _grown(patch: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Add the pixels next to a patch, where its edge fades."""
    padded = np.pad(patch, 1)
    return (
        padded[1:-1, 1:-1]
        | padded[:-2, 1:-1]
        | padded[2:, 1:-1]
        | padded[1:-1, :-2]
        | padded[1:-1, 2:]
    )


def _fit(shape: str, shares: Shares) -> tuple[float, float, float, float]:
    """Fit a shape to shares of pixels; return the quality, its middle and its radius."""
    left, right = _ends(shares.max(axis=0))
    top, bottom = _ends(shares.max(axis=1))
    x, y = (left + right) / 2, (top + bottom) / 2
    half = max(right - left, bottom - top) / 2
    if half <= 1:
        return 0.0, x, y, 0.0
    best = (0.0, x, y, 0.0)
    for scale in (0.94, 1.0, 1.06):
        radius = scale * half / SCALES[shape]
        laid = coverage(shape, x, y, radius)
        both, either = np.minimum(laid, shares).sum(), np.maximum(laid, shares).sum()
        best = max(best, (float(both / either), x, y, radius))
    return best


def _ends(most: Shares) -> tuple[float, float]:
    """Return the ends of a row of shares, in pixels, with the parts of the outer two."""
    (inside,) = np.nonzero(most >= 0.5)
    first, last = int(inside[0]), int(inside[-1])
    before = float(most[first - 1]) if first else 0.0
    after = float(most[last + 1]) if last + 1 < len(most) else 0.0
    return first - before + (1 - float(most[first])), last + 1 + after - (1 - float(most[last]))


def _named(colour: Picture) -> str:
    """Return the nearest of the named colours, or "other" if none is near."""
    distances = {
        name: float(np.linalg.norm(colour - np.array(rgb) / 255)) for name, rgb in COLOURS.items()
    }
    nearest = min(distances, key=distances.__getitem__)
    return nearest if distances[nearest] < FAR_OFF else "other"
