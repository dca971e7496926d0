"""Samplers that a chain on the host has: their options, and what of llama.cpp's they keep."""

import math

import numpy as np
import pytest

from wgpu_backend.errors import OptionError, ShapeError
from wgpu_backend.ops.sampling.host import Plan, Sampler, SamplingOptions, plan
from wgpu_backend.ops.sampling.host.options import SAMPLERS

LOGITS = np.log([0.1, 0.4, 0.2, 0.25, 0.05]).astype("f4")
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 3}
ON = [
    {"dry_multiplier": 0.8},
    {"xtc_probability": 0.1},
    {"top_n_sigma": 1.0},
    {"dynatemp_range": 0.1},
    {"mirostat": 1},
    {"mirostat": 2},
    {"min_keep": 2},
    {"samplers": ["temperature", "top_k"]},
    {"samplers": "xk", "xtc_probability": 0.5},
]
OFF = [
    {"dry_multiplier": 0.8, "dry_base": 0.5},
    {"dry_multiplier": 0.8, "dry_penalty_last_n": 0},
    {"xtc_probability": 0.5, "xtc_threshold": 0.6},
    {"top_n_sigma": 0},
    {"samplers": ["top_k", "temperature"]},
    {"samplers": ["temperature", "top_k"], "top_k": 0, "temperature": 0.5},
    {"samplers": "temperature;min_p", "min_p": 0},
    {"dry_base": 1.2, "mirostat_tau": 3, "xtc_threshold": 0.2, "dynatemp_exponent": 2},
]


@pytest.mark.parametrize("options", ON)
@pytest.mark.parametrize("more", [{}, {"temperature": 0.0}, {"top_k": 1}])
def test_the_host_chooses_where_a_chain_is_needed(options, more):
    given = SamplingOptions(**{**more, **options})
    assert given.chained
    assert not given.greedy
    assert plan(given) == Plan("host", 0, 0)


@pytest.mark.parametrize("options", OFF)
def test_the_device_chooses_where_nothing_of_it_is_on(options):
    given = SamplingOptions(**options)
    assert not given.chained
    assert plan(given).kind != "host" or given.top_k == 0


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_n_sigma": 0.8}, [1, 3]),
        ({"xtc_probability": 1, "xtc_threshold": 0.15}, [2, 0, 4]),
        ({"xtc_probability": 1, "xtc_threshold": 0.15, "temperature": 0}, [2]),
        ({"xtc_probability": 1, "xtc_threshold": 0.15, "min_keep": 4}, [1, 3, 2, 0, 4]),
        ({"top_p": 0.1, "min_keep": 3}, [1, 3, 2]),
        ({"mirostat": 2, "mirostat_tau": 0.7, "top_k": 1}, [1]),
        ({"mirostat": 2, "mirostat_tau": 1.1, "repeat_penalty": 9}, [1, 3]),
        ({"samplers": ["temperature", "min_p"], "min_p": 0.45, "temperature": 0.5}, [1]),
        ({"samplers": ["min_p", "temperature"], "min_p": 0.45, "temperature": 0.5}, [1, 3, 2]),
        ({"samplers": "et", "repeat_penalty": 5, "temperature": 0}, [2]),
        ({"samplers": "tke", "presence_penalty": 5, "top_k": 2, "temperature": 0.5}, [1, 3]),
    ],
)
def test_a_chain_chooses_among_what_is_kept(options, kept):
    sampler = Sampler(SamplingOptions(**{**NEUTRAL, **options}), 5)
    chosen = sampler.sample(LOGITS, [1, 1, 3])
    left = sampler.chances(LOGITS, [1, 1, 3])
    assert left.ids.tolist() == kept
    assert np.exp(left.logits).sum() == pytest.approx(1, abs=1e-5)
    assert chosen in kept


# What leaves a choice as it is, as llama.cpp's options say.
USUAL = {
    "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "dry_multiplier": 0.0, "top_n_sigma": -1.0, "top_k": 0, "typical_p": 1.0, "top_p": 1.0,
    "min_p": 0.0, "xtc_probability": 0.0, "temperature": 1.0, "dynatemp_range": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("name", USUAL)
def test_a_sampler_applies_unless_its_options_are_neutral(name):
    for value in (1, 40) if name == "top_k" else (USUAL[name], 0.5, 1.0):
        options = SamplingOptions(**{**USUAL, name: value})
        assert any(map(options.applies, SAMPLERS)) == (value != USUAL[name]), value


STRONG = {
    "repeat_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 1.0,
    "dry_multiplier": 0.8, "top_n_sigma": 0.8, "top_k": 2, "typical_p": 0.3, "top_p": 0.4,
    "min_p": 0.5, "xtc_probability": 1.0, "temperature": 0.5, "dynatemp_range": 0.4,
}  # fmt: skip


@pytest.mark.parametrize("named", [[], ["top_k"], ["temperature"]])
def test_samplers_that_are_not_named_change_nothing(named):
    strong = {**STRONG, "temperature": 1.0, "dynatemp_range": 0.0} if named else STRONG
    sampler = Sampler(SamplingOptions(**strong, seed=3, samplers=named), 5)
    found = sampler.chances(LOGITS, [1, 1, 3])
    kept = [1, 3] if named == ["top_k"] else [1, 3, 2, 0, 4]
    chances = np.exp(LOGITS)[kept]
    assert found.ids.tolist() == kept
    np.testing.assert_allclose(np.exp(found.logits), chances / chances.sum(), rtol=1e-5)


def test_dry_is_what_its_definition_says():
    # Tokens 0 to 4 spell no breaker; 2 follows 0, 1 twice before: two repeated, one is allowed.
    options = {"dry_multiplier": 0.5, "dry_base": 2.0, "dry_allowed_length": 1, **NEUTRAL}
    sampler = Sampler(SamplingOptions(**options), 5, {})
    sampler.sample(np.zeros(5), [4, 0, 1, 2, 4, 0, 1, 2, 3, 0, 1])
    found = sampler.chances(np.zeros(5))
    chances = dict(zip(found.ids.tolist(), np.exp(found.logits), strict=True))
    assert chances[2] / chances[0] == pytest.approx(math.exp(-0.5 * 2.0**1), rel=1e-5)
    assert chances[3] == pytest.approx(chances[0])
    broken = Sampler(SamplingOptions(**options), 5, {1: [()]})
    broken.sample(np.zeros(5), [4, 0, 1, 2, 4, 0, 1, 2, 3, 0, 1])
    assert np.exp(broken.chances(LOGITS).logits) == pytest.approx([0.2] * 5)


def test_a_dynamic_temperature_goes_by_entropy():
    flat = Sampler(SamplingOptions(**{**NEUTRAL, "temperature": 0, "dynatemp_range": 0.7}), 4)
    assert {flat.sample(np.zeros(4)) for _ in range(60)} == {0, 1, 2, 3}
    sure = Sampler(SamplingOptions(**{**NEUTRAL, "temperature": 0, "dynatemp_range": 0.7}), 4)
    assert {sure.sample(np.array([0, 9, 0, 0])) for _ in range(60)} == {1}


def test_the_draw_of_xtc_is_independent_of_the_token():
    """With one stream for both, tokens far down would never follow where XTC leaves some out."""
    options = {**NEUTRAL, "xtc_probability": 0.5, "xtc_threshold": 0.2}
    sampler = Sampler(SamplingOptions(**options), 12)
    logits = np.zeros(12, "f4")
    logits[:2] = 3  # 0.4 each
    seen = [sampler.sample(logits) for _ in range(2000)]
    # Half of the time only 1 of the two is left: 0.4 of 0.6, and ten of 0.02 each.
    assert seen.count(0) / 2000 == pytest.approx(0.5 * 0.4, abs=0.04)
    assert seen.count(11) / 2000 == pytest.approx(0.5 * 0.02 + 0.5 * 0.02 / 0.6, abs=0.01)


@pytest.mark.parametrize("options", [each for each in ON if "dry_multiplier" not in each])
def test_a_seed_repeats_itself_whatever_the_samplers(options):
    one, other = (Sampler(SamplingOptions(**{"seed": 7, **options}), 300) for _ in range(2))
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((30, 300)).astype("f4") * 3
    first = [one.sample(row) for row in rows]
    assert first == [other.sample(row) for row in rows]
    one.reset()
    assert first == [one.sample(row) for row in rows]
    large = Sampler(SamplingOptions(**{"seed": 0xFFFFFFFF, **options}), 300)
    again = Sampler(SamplingOptions(**{"seed": 0xFFFFFFFF, **options}), 300)
    assert [large.sample(row) for row in rows] == [again.sample(row) for row in rows]


def test_tokens_that_are_ruled_out_stay_out_of_every_chain():
    logits = np.full(300, -np.inf, "f4")
    logits[[7, 250]] = 0, -1
    for options in ON:
        sampler = Sampler(SamplingOptions(**{**NEUTRAL, **options}), 300, {})
        assert {sampler.sample(logits, [5, 6, 5, 6]) for _ in range(30)} <= {7, 250}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mirostat": 3}, "mirostat: 3, needs 0 to 2"),
        ({"mirostat": 1.5}, "mirostat: 1.5, needs a whole number"),
        ({"dry_multiplier": "much"}, "dry_multiplier: 'much', needs a number"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n: -2, needs -1 to"),
        ({"dry_sequence_breakers": 5}, "dry_sequence_breakers: 5, needs strings"),
        ({"dry_sequence_breakers": ["a", 5]}, "dry_sequence_breakers: 5, needs strings"),
        ({"dry_sequence_breakers": ["a"] * 200}, "200 texts, needs at most 128"),
        ({"xtc_probability": math.nan}, "xtc_probability: nan, needs 0.0 to 1.0"),
        ({"samplers": 5}, "samplers: 5, needs names"),
        ({"samplers": ["top_k", []]}, r"samplers: \[\], needs names"),
        ({"samplers": ["top_x"]}, "samplers: 'top_x', needs one of penalties, dry"),
        ({"samplers": "kk"}, "samplers: top_k is named twice, needs each once"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(OptionError, match=said):
        SamplingOptions(**options)


def test_dry_needs_a_vocabulary_and_a_chain_as_many_logits():
    with pytest.raises(OptionError, match="dry_multiplier: DRY needs a model's vocabulary"):
        Sampler(SamplingOptions(dry_multiplier=1), 4)
    with pytest.raises(ShapeError, match=r"logits are \(4,\), needs \(3,\)"):
        Sampler(SamplingOptions(mirostat=2), 3).sample(np.zeros(4))
