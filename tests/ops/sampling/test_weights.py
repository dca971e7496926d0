import numpy as np
import pytest

from wgpu_backend.ops.sampling.host.sampling_params import LOG2_E
from wgpu_backend.ops.sampling.host.weights import share, weights

# Half a step of 2^-23, plus what a float32 distance of up to 24 loses: 2^-21, times e^-24 … 1.
CLOSE = 2**-22


def falling(count: int, depth: float) -> np.ndarray:
    return -np.linspace(0, depth, count, dtype=np.float32)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("count", [2, 256, 257, 5000])
def test_weights_are_proportional_to_probabilities(count: int, temperature: float) -> None:
    logits = falling(count, 24)

    found = weights(logits, float(np.float32(LOG2_E / temperature)))

    expected = np.exp(logits.astype(np.float64) / temperature)
    np.testing.assert_allclose(found / found[0], expected, rtol=0, atol=CLOSE)


def test_weights_are_summed_without_overflow() -> None:
    assert int(weights(np.zeros(256, np.float32), 1.0).sum()) == 2**31
    assert int(weights(np.zeros(2**10, np.float32), 1.0).sum()) == 2**50


def test_far_logits_have_no_weight() -> None:
    logits = np.array([88, 87.999, 60, -3e38, -np.inf], np.float32)

    found = weights(logits, float(LOG2_E))

    assert found[0] == 2**23
    assert 0 < found[1] < found[0]
    assert found[2:].tolist() == [0, 0, 0]


def test_weights_never_rise_as_logits_fall() -> None:
    # Every step of the fixed-point distance over two octaves, so each seam of the polynomial.
    logits = falling(200_001, 2)

    assert (np.diff(weights(logits, 1.0).astype(np.int64)) <= 0).all()
    assert (np.diff(weights(logits[::1000], 1.0).astype(np.int64)) <= 0).all()


def test_a_sharpness_without_end_leaves_the_largest_alone() -> None:
    assert weights(np.array([1, 1, 0.9999], np.float32), 1.4e6).tolist() == [2**23, 2**23, 0]


def test_a_share_rounds_down() -> None:
    assert share(3, 0) == 0
    assert share(3, 2**31) == 1
    assert share(2**58, 2**32 - 1) == 2**58 - 2**26
