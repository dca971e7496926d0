import numpy as np
import pytest

from wgpu_backend.errors import BackendError, ShapeError
from wgpu_backend.ops.sampling.host import Sampler, SamplingOptions

# 99.99 % of chi-square with 39 degrees of freedom; the seed is fixed, so this passes or not.
CHI_SQUARE_39 = 80.0


def everything(**options: float) -> SamplingOptions:
    return SamplingOptions(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 5, **options})


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_frequencies_follow_the_softmax(rng: np.random.Generator, temperature: float) -> None:
    logits = rng.normal(size=40).astype(np.float32)
    sampler = Sampler(everything(temperature=temperature), 40)
    draws = 20_000

    seen = np.bincount([sampler.sample(logits) for _ in range(draws)], minlength=40)

    expected = softmax(logits.astype(np.float64) / temperature) * draws
    assert np.sum((seen - expected) ** 2 / expected) < CHI_SQUARE_39


@pytest.mark.slow
def test_frequencies_over_a_large_vocabulary(rng: np.random.Generator) -> None:
    # Forty groups of a hundred tokens: the arithmetic of more than 256 candidates.
    logits = rng.normal(size=4000).astype(np.float32)
    sampler = Sampler(everything(), 4000)
    draws = 5000

    groups = [sampler.sample(logits) // 100 for _ in range(draws)]

    expected = softmax(logits.astype(np.float64)).reshape(40, 100).sum(axis=1) * draws
    seen = np.bincount(groups, minlength=40)
    assert np.sum((seen - expected) ** 2 / expected) < CHI_SQUARE_39


def test_a_seed_repeats_itself_and_reset_begins_anew(rng: np.random.Generator) -> None:
    logits = rng.normal(size=1000).astype(np.float32)
    one, other = (Sampler(SamplingOptions(seed=7), 1000) for _ in range(2))

    first = [one.sample(logits) for _ in range(50)]
    assert first == [other.sample(logits) for _ in range(50)]
    assert first != [other.sample(logits) for _ in range(50)]
    one.reset()
    assert first == [one.sample(logits) for _ in range(50)]


@pytest.mark.parametrize("seed", [None, -1])
def test_without_a_seed_one_is_drawn(seed: int | None) -> None:
    logits = np.zeros(1000, np.float32)
    one, other = (Sampler(SamplingOptions(seed=seed), 1000) for _ in range(2))
    again = Sampler(SamplingOptions(seed=one.seed), 1000)

    assert one.seed != other.seed
    assert [one.sample(logits) for _ in range(20)] == [again.sample(logits) for _ in range(20)]


def test_seed_zero_is_a_seed() -> None:
    assert Sampler(SamplingOptions(seed=0), 4).seed == 0


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_k": 1}])
def test_greedy_takes_the_first_of_the_largest(options: dict) -> None:
    sampler = Sampler(SamplingOptions(**options), 4)

    assert [sampler.sample(np.array([0, 2, 1, 2])) for _ in range(5)] == [1] * 5


def test_every_token_takes_one_draw_whatever_the_options() -> None:
    greedy = Sampler(SamplingOptions(temperature=0.0, seed=3), 4)
    other = Sampler(SamplingOptions(seed=3), 4)

    for sampler in (greedy, other):
        sampler.sample(np.zeros(4))

    assert greedy.draw() == other.draw()


def test_penalties_look_at_the_last_tokens_alone() -> None:
    logits = np.array([1.0, 0.9, 0.8])
    options = SamplingOptions(temperature=0.0, presence_penalty=1.0, repeat_last_n=2)

    assert Sampler(options, 3).sample(logits, [0, 1, 2]) == 0
    assert Sampler(options, 3).sample(logits, [2, 2, 0]) == 1


def test_penalties_can_look_all_the_way_back() -> None:
    options = SamplingOptions(temperature=0.0, presence_penalty=1.0, repeat_last_n=-1)

    assert Sampler(options, 3).sample([1.0, 0.9, 0.8], [0] + [1] * 500) == 2


def test_ruled_out_tokens_are_never_taken() -> None:
    logits = np.full(300, -np.inf, np.float32)
    logits[[7, 250]] = (0, -1)
    sampler = Sampler(everything(), 300)

    assert {sampler.sample(logits) for _ in range(200)} == {7, 250}


def test_typical_p_takes_part() -> None:
    logits = np.log(np.array([0.4, 0.2, 0.2, 0.2]))
    sampler = Sampler(everything(typical_p=0.5), 4)

    assert {sampler.sample(logits) for _ in range(200)} == {1, 2, 3}


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"repeat_penalty": 1.1}])
@pytest.mark.parametrize(
    ("logits", "got"),
    [([0, np.nan, 1], "nan"), ([0, np.inf, 1], "inf"), ([-np.inf] * 3, "-inf")],
)
def test_logits_that_are_not_numbers_are_an_error(logits: list, got: str, options: dict) -> None:
    with pytest.raises(BackendError) as caught:
        Sampler(SamplingOptions(**options), 3).sample(logits, [0])

    assert str(caught.value) == f"sample: the largest of 3 logits is {got}, needs finite"


def test_logits_of_another_vocabulary_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"logits are \(4,\), needs \(3,\)"):
        Sampler(SamplingOptions(), 3).sample(np.zeros(4))


def test_the_callers_logits_stay_as_they_are() -> None:
    logits = np.ones(4, np.float32)
    logits.flags.writeable = False

    Sampler(SamplingOptions(repeat_penalty=2.0), 4).sample(logits, [1, 2])


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0},
        {"temperature": 0.7, "top_k": 4},
        {"temperature": 1.5, "top_k": 0, "top_p": 0.7, "min_p": 0.05},
        {"temperature": 1.0, "top_k": 0, "typical_p": 0.6, "repeat_penalty": 1.5},
    ],
)
def test_chances_are_how_often_each_token_is_chosen(given):
    random = np.random.default_rng()
    logits = random.normal(0, 2, 12).astype(np.float32)
    history = [int(np.argmax(logits))]
    sampler = Sampler(SamplingOptions(seed=5, **given), 12)
    found = sampler.chances(logits, history)
    chances = np.zeros(12)
    chances[found.ids] = np.exp(found.logits)
    assert chances.sum() == pytest.approx(1, abs=1e-5)
    drawn = np.bincount([sampler.sample(logits, history) for _ in range(4000)], minlength=12)
    assert np.abs(drawn / 4000 - chances).max() < 0.05
    assert not drawn[chances == 0].any()
