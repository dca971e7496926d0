"""Pictures of one shape in one colour, and conversations about them, drawn from a seed."""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

COLOURS = {
    "red": (215, 35, 35),
    "green": (40, 155, 60),
    "blue": (40, 80, 215),
    "yellow": (245, 220, 45),
    "orange": (245, 140, 25),
    "purple": (130, 50, 165),
    "pink": (250, 160, 195),
    "brown": (120, 75, 40),
    "black": (15, 15, 15),
    "white": (245, 245, 245),
    "grey": (130, 130, 130),
}
SHAPES = ("square", "circle", "triangle")
# Colours of a picture differ from the table's by so much, and pixels from their colour.
JITTER, NOISE = 14, 5
# A prompt with this token has a picture in its place.
IMAGE = "<image>"
NO_PICTURE = "Please show me a picture."

ASK_COLOUR = (
    "Which colour?",
    "Which color?",
    "What colour is it?",
    "What color is it?",
    "Which colour is this?",
    "What colour is the {shape}?",
    "What color is the {shape}?",
    "Name the colour.",
    "Name the colour of the {shape}.",
)
ASK_SHAPE = (
    "Which shape?",
    "What shape is it?",
    "Which shape is this?",
    "Name the shape.",
    "Is it a square, a circle or a triangle?",
)
ASK_BACKGROUND = (
    "What colour is the background?",
    "Which colour is the background?",
    "What color is the background?",
    "And the background?",
)
ASK_ALL = (
    "What is this?",
    "What do you see?",
    "What is in this picture?",
    "What is in this image?",
    "Describe the picture.",
    "Describe this image.",
    "What can you see here?",
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A shape in front of a background; without a shape, a picture of one colour."""

    shape: str
    colour: str
    background: str

    def answers(self) -> dict[str, str]:
        """Return the answer to each kind of question."""
        if not self.shape:
            return {
                "colour": f"{self.colour.capitalize()}.",
                "shape": "There is no shape.",
                "background": f"{self.colour.capitalize()}.",
                "all": f"A {self.colour} picture.".replace("A orange", "An orange"),
            }
        thing = f"A {self.colour} {self.shape} on a {self.background} background."
        return {
            "colour": f"{self.colour.capitalize()}.",
            "shape": f"A {self.shape}.",
            "background": f"{self.background.capitalize()}.",
            "all": thing.replace("A orange", "An orange").replace("a orange", "an orange"),
        }


QUESTIONS = {
    "colour": ASK_COLOUR,
    "shape": ASK_SHAPE,
    "background": ASK_BACKGROUND,
    "all": ASK_ALL,
}


def draw_scene(rng: random.Random) -> Scene:
    """Draw what a picture shows; one in five is of one colour."""
    colour, background = rng.sample(list(COLOURS), 2)
    if rng.random() < 0.2:
        return Scene("", colour, colour)
    # Half of all backgrounds are white or black, as in pictures that people make to try a model.
    if rng.random() < 0.5 and colour not in ("white", "black"):
        background = rng.choice(("white", "white", "black"))
    return Scene(rng.choice(SHAPES), colour, background)


def draw_picture(scene: Scene, rng: random.Random) -> NDArray[np.uint8]:
    """Draw a scene: (height, width, 3), u8, of random size."""
    long = rng.randint(64, 160)
    short = max(64, int(long * rng.uniform(0.75, 1.0)))
    width, height = (long, short) if rng.random() < 0.5 else (short, long)
    picture = Image.new("RGB", (width, height), _vary(scene.background, rng))
    if scene.shape:
        # The square in the middle is what a tower sees of a picture.
        radius = short * rng.uniform(0.22, 0.45)
        free = max(short / 2 - radius, 0)
        x = width / 2 + rng.uniform(-free, free)
        y = height / 2 + rng.uniform(-free, free)
        _draw_shape(ImageDraw.Draw(picture), scene.shape, (x, y, radius), _vary(scene.colour, rng))
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, NOISE, (height, width, 3))
    strength = rng.choice((0.0, 1.0))
    return np.clip(np.asarray(picture) + strength * noise, 0, 255).round().astype(np.uint8)


def _draw_shape(
    draw: ImageDraw.ImageDraw,
    shape: str,
    place: tuple[float, float, float],
    fill: tuple[int, int, int],
) -> None:
    x, y, radius = place
    if shape == "circle":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill)
    elif shape == "square":
        half = radius * 0.9
        draw.rectangle((x - half, y - half, x + half, y + half), fill)
    else:
        corners = [(x, y - radius), (x - radius, y + radius * 0.8), (x + radius, y + radius * 0.8)]
        draw.polygon(corners, fill)


def _vary(name: str, rng: random.Random) -> tuple[int, int, int]:
    red, green, blue = (
        min(255, max(0, value + rng.randint(-JITTER, JITTER))) for value in COLOURS[name]
    )
    return red, green, blue


def draw_turns(scene: Scene, rng: random.Random) -> list[tuple[str, str, str]]:
    """Draw one to three questions of different kinds: (kind, question, answer) each."""
    answers = scene.answers()
    # Shapes are harder to tell than colours, so they are asked for more often.
    kinds = list(dict.fromkeys(rng.choices(list(QUESTIONS), (1, 4, 1, 3), k=rng.choice((1, 2, 4)))))
    return [(kind, ask(kind, scene, rng), answers[kind]) for kind in kinds]


def ask(kind: str, scene: Scene, rng: random.Random) -> str:
    """Draw a question; its spelling varies as people's does."""
    question = rng.choice(QUESTIONS[kind]).format(shape=scene.shape or "picture")
    if rng.random() < 0.15:
        question = question.lower()
    if rng.random() < 0.15:
        question = question.rstrip("?.")
    return question
