"""Arguments of pictures: errors name those of wrong types."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from wgpu_backend.errors import OptionError
from wgpu_backend.images.requests import Request, check_draw

WHOLE = (
    "num_inference_steps", "height", "width", "seed", "num_images_per_prompt",
    "max_sequence_length",
)  # fmt: skip
REAL = ("guidance_scale", "strength")
TEXTS = ("prompt", "negative_prompt", "scheduler", "output_type")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in WHOLE for value in (2.5, 2.0, "2", [2], True, Fraction(2))),
        *((name, value) for name in REAL for value in ("2", [2], 2j, True, object())),
        *((name, value) for name in TEXTS for value in (5, b"a", ["a"], 2.5)),
        *((name, value) for name in ("image", "mask_image") for value in (5, [1], 2.5, object())),
        *((name, value) for name in ("generator", "callback") for value in (5, "a", 1.5)),
        ("prompt", None),
        ("num_images_per_prompt", None),
        ("output_type", None),
    ],
)
def test_a_value_of_a_wrong_type_is_told_by_its_name(name, value):
    given = {"prompt": "a fox", "image": "a.png", name: value}
    with pytest.raises(OptionError, match=f"^{name} is {type(value).__name__}, needs "):
        Request(**given)


@pytest.mark.parametrize("latents", ["a", [[1], [1, 2]], object(), {"a": 1}])
def test_latents_that_are_no_numbers_are_told(latents):
    with pytest.raises(OptionError, match=r"^latents: .* needs an array of floats"):
        Request("a fox", latents=latents)


@pytest.mark.parametrize("name", ["num_inference_steps", "max_sequence_length"])
def test_counts_below_one_are_told(name):
    with pytest.raises(OptionError, match=f"{name} is 0, needs at least 1"):
        Request("a fox", **{name: 0})


def test_numbers_of_numpy_are_numbers():
    made = Request(
        "a fox", num_inference_steps=np.int64(3), seed=np.uint32(5), guidance_scale=np.float32(2),
        strength=1, image=Path("a.png"), latents=[1, 2],
    )  # fmt: skip
    assert made.latents.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("made", [5, "a", np.zeros(3), np.zeros((2, 3), bool)])
def test_random_numbers_of_another_shape_are_told(made):
    with pytest.raises(OptionError, match=r"^generator: made .* needs floats of shape \(2, 3\)"):
        check_draw(lambda _: made)((2, 3))
    assert check_draw(np.zeros)((2, 3)).shape == (2, 3)
