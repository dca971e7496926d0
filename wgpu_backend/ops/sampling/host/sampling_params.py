"""Sampling options as the float32 numbers that host and device compute with."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.ops.sampling.host.options import SamplingOptions

LOG2_E = np.float32(math.log2(math.e))
# A lower temperature is this one; the most likely token then has all the probability anyway.
LOWEST_TEMPERATURE = 1e-6
# Beyond every distance between two float32 logits that leaves the smaller one a weight.
EVERY_GAP = np.float32(3.0e38)


class SamplingParams(NamedTuple):
    """One row of the tensor that `ops.sampling` calls `sampling`; the fields are its columns.

    Parameters
    ----------
    top_k : float
        Candidates to keep; 0 keeps all.
    top_p : float
        Share of the probability to keep; 1 keeps all.
    gap : float
        Logits further than this below the largest are dropped: what min_p comes down to.
    sharpness : float
        Turns a distance between logits into powers of two: log2(e) / temperature.
    repeat, inverse_repeat : float
        Factors of a seen token's logit, where it is not positive and where it is.
    presence, frequency : float
        Subtracted from a seen token's logit, once and for each time it was seen.
    """

    top_k: float
    top_p: float
    gap: float
    sharpness: float
    repeat: float
    inverse_repeat: float
    presence: float
    frequency: float

    def array(self) -> NDArray[np.float32]:
        """Return the row of the tensor.

        Returns
        -------
        (8,), float32.
        """
        return np.array(self, np.float32)


def make_sampling_params(options: SamplingOptions) -> SamplingParams:
    """Convert checked options to numbers, each rounded to float32 once."""
    numbers = (
        1 if options.greedy else options.top_k,
        options.top_p,
        -math.log(options.min_p) if options.min_p > 0 else float(EVERY_GAP),
        math.log2(math.e) / max(options.temperature, LOWEST_TEMPERATURE),
        options.repeat_penalty,
        # The inverse is rounded here once: division on a device may round otherwise.
        1 / options.repeat_penalty,
        options.presence_penalty,
        options.frequency_penalty,
    )
    return SamplingParams(*(float(np.float32(number)) for number in numbers))
