"""Each step against numbers worked out by hand, on the distributions that llama.cpp tests with."""

import math

import numpy as np
import pytest

from wgpu_backend.ops.sampling.host import (
    Candidates,
    SamplingOptions,
    SamplingParams,
    largest,
    make_sampling_params,
)
from wgpu_backend.ops.sampling.host.transforms import (
    min_p,
    penalise,
    pick,
    top_k,
    top_p,
    typical_p,
)

FOUR = (0.1, 0.2, 0.3, 0.4)


def candidates(probabilities: tuple[float, ...]) -> Candidates:
    return largest(np.log(np.array(probabilities, np.float32)), 0)


def sampling(**options: float) -> SamplingParams:
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return make_sampling_params(SamplingOptions(**{**neutral, **options}))


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [3]), (3, [3, 2, 1]), (4, [3, 2, 1, 0]), (9, [3, 2, 1, 0])]
)
def test_largest_sorts_descending(k: int, expected: list[int]) -> None:
    found = largest(np.log(np.array(FOUR, np.float32)), k)

    assert found.ids.tolist() == expected
    assert found.logits.tolist() == sorted(np.log(np.array(FOUR, np.float32)).tolist())[::-1][:k]


@pytest.mark.parametrize("k", [1, 2, 5, 0])
def test_of_equal_logits_the_lower_id_comes_first(k: int) -> None:
    logits = np.array([1, 3, -0.0, 3, 0.0, 3, 1], np.float32)

    assert largest(logits, k).ids.tolist() == [1, 3, 5, 0, 6, 2, 4][: k or 7]


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [3]), (3, [3, 2, 1]), (4, [3, 2, 1, 0]), (0, [3, 2, 1, 0])]
)
def test_top_k_keeps_the_first(k: int, expected: list[int]) -> None:
    assert top_k(candidates(FOUR), k).ids.tolist() == expected


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0.0, [3]),
        (0.39, [3]),
        (0.41, [3, 2]),
        (0.7, [3, 2]),
        (0.8, [3, 2, 1]),
        (0.91, [3, 2, 1, 0]),
        (1.0, [3, 2, 1, 0]),
    ],
)
def test_top_p_keeps_the_first_that_reach_the_share(p: float, expected: list[int]) -> None:
    assert top_p(candidates(FOUR), float(np.float32(p))).ids.tolist() == expected


@pytest.mark.parametrize(
    ("p", "kept"),
    [(0.0, 4), (0.24, 4), (0.26, 3), (0.49, 3), (0.51, 2), (0.74, 2), (0.76, 1), (1.0, 1)],
)
def test_min_p_is_relative_to_the_largest(p: float, kept: int) -> None:
    assert len(min_p(candidates(FOUR), sampling(min_p=p).gap)) == kept


@pytest.mark.parametrize(
    ("probabilities", "p", "expected"),
    [
        ((0.97, 0.01, 0.01, 0.01), 0.5, [0]),
        ((0.4, 0.2, 0.2, 0.2), 0.5, [1, 2, 3]),
        ((0.4, 0.2, 0.2, 0.2), 0.99, [0, 1, 2, 3]),
        ((0.4, 0.2, 0.2, 0.2), 0.0, [1]),
    ],
)
def test_typical_p_prefers_the_expected_surprise(
    probabilities: tuple[float, ...], p: float, expected: list[int]
) -> None:
    assert typical_p(candidates(probabilities), p).ids.tolist() == expected


def test_typical_p_keeps_candidates_sorted() -> None:
    # Surprises 0.92, 1.20, 1.61, 2.30; 1.28 is expected: ids 1, 2, 0, 3 come closest.
    found = typical_p(candidates((0.4, 0.3, 0.2, 0.1)), 0.6)

    assert found.ids.tolist() == [0, 1, 2]
    assert (np.diff(found.logits) < 0).all()


def test_typical_p_ignores_tokens_that_are_ruled_out() -> None:
    found = typical_p(Candidates(np.arange(2), np.array([0, -np.inf], np.float32)), 0.5)

    assert found.ids.tolist() == [0]


@pytest.mark.parametrize(
    ("history", "options", "expected"),
    [
        ([0], {"repeat_penalty": 50.0}, (0, 0.25, 0.25, 0.25, 0.25)),
        ([0, 1, 2], {"repeat_penalty": 50.0}, (0, 0, 0, 0.5, 0.5)),
        ([0, 1, 2, 0, 0], {"repeat_penalty": 50.0}, (0, 0, 0, 0.5, 0.5)),
        (
            [0],
            {"frequency_penalty": 5.0, "presence_penalty": 5.0},
            (0.000011, 0.249997, 0.249997, 0.249997, 0.249997),
        ),
        (
            [0, 1, 2, 0, 0],
            {"frequency_penalty": 5.0, "presence_penalty": 5.0},
            (0.000000, 0.000023, 0.000023, 0.499977, 0.499977),
        ),
    ],
)
def test_penalties_move_probability_to_unseen_tokens(
    history: list[int], options: dict[str, float], expected: tuple[float, ...]
) -> None:
    logits = np.log(np.full(5, 0.2, np.float32))

    powers = np.exp(penalise(logits, history, sampling(**options)))

    np.testing.assert_allclose(powers / powers.sum(), expected, atol=1e-5)


def test_penalties_divide_or_multiply_by_sign() -> None:
    logits = np.array([3, -3, 0, 5], np.float32)
    options = {"repeat_penalty": 2.0, "presence_penalty": 0.25, "frequency_penalty": 0.5}

    found = penalise(logits, [0, 1, 1, 2, -1, 9], sampling(**options))

    assert found.tolist() == [0.75, -7.25, -0.75, 5]
    assert logits.tolist() == [3, -3, 0, 5]


def test_a_penalty_leaves_ruled_out_tokens_out() -> None:
    logits = np.array([-np.inf, 0], np.float32)

    assert penalise(logits, [0], sampling(repeat_penalty=2.0)).tolist() == [-math.inf, 0]


@pytest.mark.parametrize(
    ("draw", "expected"),
    [(0.0, 3), (0.39, 3), (0.41, 2), (0.69, 2), (0.71, 1), (0.89, 1), (0.91, 0), (1 - 2**-32, 0)],
)
def test_a_draw_falls_on_descending_probabilities(draw: float, expected: int) -> None:
    assert pick(candidates(FOUR), sampling(), int(draw * 2**32)) == expected


def test_a_draw_on_a_seam_belongs_to_the_token_behind_it() -> None:
    equal = candidates((0.25, 0.25, 0.25, 0.25))

    assert [pick(equal, sampling(), i << 30) for i in range(4)] == [0, 1, 2, 3]
    assert [pick(equal, sampling(), (i << 30) - 1) for i in range(1, 4)] == [0, 1, 2]


@pytest.mark.parametrize(("draw", "expected"), [(0.52, 3), (0.55, 2), (0.99, 0)])
def test_temperature_applies_after_the_cuts(draw: float, expected: int) -> None:
    # At temperature 1/2 probabilities are squared: 0.16, 0.09, 0.04, 0.01 of 0.30.
    assert pick(candidates(FOUR), sampling(temperature=0.5), int(draw * 2**32)) == expected


def test_top_p_comes_before_temperature() -> None:
    # At temperature 10 the four are nearly equal, and three of them would be needed for 0.7.
    hot = sampling(temperature=10.0, top_p=0.69)

    assert pick(candidates(FOUR), hot, 2**32 - 1) == 2


@pytest.mark.parametrize("count", [100, 10_000])
def test_a_queue_of_cuts_over_a_rising_distribution(count: int) -> None:
    # Probability grows with the id, so sizes follow from sums of whole numbers.
    with np.errstate(divide="ignore"):
        logits = np.log(np.arange(count, dtype=np.float32))
    whole = largest(logits, 0)

    assert len(top_p(whole, 0.8)) == reaching(0.8, np.arange(count)[::-1])
    assert len(min_p(whole, sampling(min_p=0.1).gap)) == count - math.ceil((count - 1) / 10)
    fifty = top_p(top_k(whole, 50), 0.8)
    assert len(fifty) == reaching(0.8, np.arange(count)[: count - 51 : -1])
    assert min_p(fifty, sampling(min_p=0.9).gap).ids.min() == max(
        math.ceil(0.9 * (count - 1)), count - len(fifty)
    )


def reaching(share: float, numbers: np.ndarray) -> int:
    """How many of the numbers it takes to reach a share of their sum."""
    sums = np.cumsum(numbers)
    return int(np.searchsorted(sums, share * sums[-1])) + 1
