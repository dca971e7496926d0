"""Chains choose the engine's tokens, and each sampler keeps the tokens that its paper defines."""

import numpy as np
import pytest

import wgpu_backend
from tests.builders import tiny_model
from wgpu_backend.engine.loading import bundled
from wgpu_backend.errors import BackendError, GrammarError, OptionError
from wgpu_backend.llama import Batch, Context, Model, SamplerChain
from wgpu_backend.ops.sampling.host import Sampler, SamplingOptions
from wgpu_backend.ops.sampling.host.dry import repetitions
from wgpu_backend.ops.sampling.host.steps import Choice

VOCABULARY = 300


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8},
        {"temperature": 0.0},
        {"temperature": 1.7, "top_k": 0, "top_p": 0.7, "min_p": 0.02},
        {"temperature": 1.2, "typical_p": 0.6, "top_k": 100},
        {"temperature": 0.9, "repeat_penalty": 1.4, "frequency_penalty": 0.3, "repeat_last_n": 5},
        {"temperature": 1.0, "presence_penalty": 2.0, "repeat_last_n": 64},
    ],
)
def test_a_chain_chooses_the_engines_tokens(options):
    given = SamplingOptions(**options, seed=11)
    engine, history = Sampler(given, VOCABULARY), []
    chain = SamplerChain().add_penalties(
        given.repeat_last_n, given.repeat_penalty, given.frequency_penalty, given.presence_penalty
    )
    if given.greedy:
        chain.add_greedy()
    else:
        chain.add_top_k(given.top_k).add_typical(given.typical_p).add_top_p(given.top_p)
        chain.add_min_p(given.min_p).add_temp(given.temperature).add_dist(11)
    rng = np.random.default_rng(4)
    for _ in range(60):
        logits = (rng.standard_normal(VOCABULARY) * 3).astype("f4")
        expected = engine.sample(logits, history)
        history.append(expected)
        assert chain.choose(logits) == expected
        chain.accept(expected)


def kept(chain, logits):
    found = chain.apply(Choice(np.array(logits, "f4"))).sort_candidates()
    return found.ids.tolist()


LOGITS = np.log([0.1, 0.4, 0.2, 0.25, 0.05])


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (SamplerChain().add_top_k(2), [1, 3]),
        (SamplerChain().add_top_k(0), [1, 3, 2, 0, 4]),
        (SamplerChain().add_top_p(0.6), [1, 3]),
        (SamplerChain().add_top_p(0.1, min_keep=3), [1, 3, 2]),
        (SamplerChain().add_min_p(0.45), [1, 3, 2]),
        (SamplerChain().add_temp(0.0), [1]),
        (SamplerChain().add_temp(0.5).add_min_p(0.45), [1]),
        (SamplerChain().add_logit_bias({4: 9.0, 1: -np.inf}).add_top_k(2), [4, 3]),
        (SamplerChain().add_top_n_sigma(0.8), [1, 3]),
        (SamplerChain().add_xtc(1.0, 0.15, 0, 3), [2, 0, 4]),
        (SamplerChain().add_xtc(1.0, 0.15, 4, 3), [1, 3, 2, 0, 4]),
        (SamplerChain().add_xtc(0.0, 0.15, 0, 3), [1, 3, 2, 0, 4]),
        (SamplerChain().add_custom(lambda x: -x).add_top_k(1), [4]),
        (SamplerChain().add_top_k(3).add_logit_bias({2: 9.0, 4: 20.0}), [2, 1, 3]),
    ],
)
def test_a_sampler_keeps_the_expected_tokens(chain, expected):
    assert kept(chain, LOGITS) == expected


def test_a_dynamic_temperature_depends_on_entropy():
    flat = SamplerChain().add_temp_ext(1.0, 0.5, 1.0).apply(Choice(np.zeros(4, "f4")))
    assert flat.temperature == pytest.approx(1.5)
    sure = SamplerChain().add_temp_ext(1.0, 0.5, 1.0)
    sure = sure.apply(Choice(np.array([50.0, 0, 0, 0], "f4")))
    assert sure.temperature == pytest.approx(0.5)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [2.0, 4.0])
def test_mirostat_reaches_its_target_surprise(version, tau):
    chain = SamplerChain()
    if version == 1:
        chain.add_mirostat(VOCABULARY, 5, tau, 0.1)
    else:
        chain.add_mirostat_v2(5, tau, 0.1)
    logits = -1.1 * np.log(np.arange(1, VOCABULARY + 1)).astype("f4")
    bounds: list[float] = []
    for _ in range(500):
        chain.choose(logits)
        bounds.append(chain.get(0).bound)
    # The bound moves by a tenth of what a token's surprise is off.
    assert tau - 10 * (bounds[-1] - bounds[99]) / 400 == pytest.approx(tau, abs=0.15)


def test_equal_seeds_and_clones_draw_equal_tokens():
    chain = SamplerChain().add_temp(1.0).add_dist(3)
    logits = np.zeros(50, "f4")
    first = [chain.choose(logits) for _ in range(5)]
    clone = chain.clone()
    assert [chain.choose(logits) for _ in range(5)] == [clone.choose(logits) for _ in range(5)]
    chain.reset()
    assert [chain.choose(logits) for _ in range(5)] == first
    assert chain.get_seed() == 3


def test_a_grammar_applies_from_the_first_choice(tmp_path):
    with Model(tiny_model(tmp_path / "model.gguf"), vocab_only=True) as model:
        digits = 'root ::= [0-9] "."'
        chain = SamplerChain().add_grammar(model, digits).add_top_k(5).add_dist(3)
        logits = np.random.default_rng(0).standard_normal(model.n_vocab()).astype("f4")
        chain.accept_all(model.tokenize("a prompt"))
        first = chain.choose(logits)
        assert model.token_to_piece(first).isdigit()
        clone = chain.clone()
        for each in (chain, clone):
            each.accept(first)
            assert model.token_to_piece(each.choose(logits)) == b"."
            each.accept(each.choose(logits))
        end = chain.choose(logits)
        assert model.is_eog(end)
        chain.accept(end)
        chain.reset()
        assert model.token_to_piece(chain.choose(logits)).isdigit()
        ends = np.zeros(model.n_vocab(), "f4")
        late = SamplerChain().add_top_k(1).add_grammar(model, 'root ::= "~"').add_greedy()
        with pytest.raises(GrammarError, match="before samplers that drop"):
            late.choose(ends)


def test_a_chain_that_cannot_choose_is_an_error():
    with pytest.raises(BackendError, match="add greedy or dist last"):
        SamplerChain().add_top_k(3).choose(np.zeros(4))
    with pytest.raises(BackendError, match="not finite"):
        SamplerChain().add_greedy().choose([np.nan, 1.0])
    with pytest.raises(OptionError, match="token 9, the vocabulary has 4"):
        SamplerChain().add_logit_bias({9: 2}).add_greedy().choose(np.zeros(4))
    with pytest.raises(OptionError, match="made"):
        SamplerChain().add_custom(lambda x: x[1:]).add_greedy().choose(np.zeros(4))


def test_samplers_can_be_read_and_removed():
    chain = SamplerChain().add_top_k(3).add_greedy()
    assert (chain.n(), chain.get(0).name, chain.remove(0).name, chain.n()) == (
        2,
        "top-k",
        "top-k",
        1,
    )


@pytest.fixture(scope="module")
def story():
    with Model(str(bundled()), device="cpu") as model:
        yield model


def dry_penalties(model, tokens, **options):
    chain = SamplerChain().add_dry(model, 0.8, **options)
    chain.accept_all(tokens)
    made = -chain.apply(Choice(np.zeros(model.n_vocab(), "f4"))).logits
    return {int(t): float(made[t]) for t in np.flatnonzero(made)}


def test_dry_lowers_tokens_that_continue_a_repetition(story):
    tokens = [300, 301, 302, 303, 304, 400, 300, 301, 302, 303]
    four = {304: pytest.approx(0.8 * 1.75**2, rel=1e-5)}  # four repeated, two allowed
    assert dry_penalties(story, tokens) == four
    assert dry_penalties(story, [303, 305, *tokens]) == four  # one alone is allowed
    assert dry_penalties(story, tokens, dry_allowed_length=5) == {}
    assert dry_penalties(story, tokens, dry_base=0.5) == {}
    assert dry_penalties(story, tokens, dry_penalty_last_n=5) == {}


def test_a_breaker_ends_a_repetition(story):
    tokens = story.tokenize("a cat sat: on a mat. then a cat sat: on a", add_special=False)
    [[token, whole]] = dry_penalties(story, tokens, seq_breakers=()).items()
    [[same, less]] = dry_penalties(story, tokens).items()
    assert (same, less < whole) == (token, True)
    # A breaker may be spelled by several tokens.
    assert dry_penalties(story, tokens, seq_breakers=("sat: on a",)) == {}


def test_dry_refuses_wrong_options(story):
    with pytest.raises(OptionError, match="penalty_last_n is -2, needs -1 or more"):
        SamplerChain().add_dry(story, 0.8, dry_penalty_last_n=-2)


def test_dry_lowers_tokens_left_by_other_samplers(story):
    chain = SamplerChain().add_top_k(2).add_temp(0.5).add_dry(story, 4.0, dry_allowed_length=1)
    chain.accept_all([300, 301, 302] * 3)
    logits = np.zeros(story.n_vocab(), "f4")
    logits[[300, 9]] = 8, 2  # six tokens are repeated, one is allowed
    left = chain.apply(Choice(logits)).sort_candidates()
    assert left.ids.tolist() == [9, 300]
    assert left.logits == pytest.approx([4, 16 - 4 * 1.75**5], rel=1e-5)


@pytest.mark.parametrize("period", [1, 2, 7])
def test_dry_finds_long_repetitions(period):
    rng = np.random.default_rng(period)
    for size in (70, 90, 333):
        seen = np.resize(rng.integers(0, 3, period), size)
        seen[rng.integers(0, size - 1)] = 9
        for most in (3, 68, size):
            expected: dict[int, int] = {}
            for end in range(size - 1):
                length = 0
                while length < most and length <= end and seen[end - length] == seen[-1 - length]:
                    length += 1
                if length:
                    token = int(seen[end + 1])
                    expected[token] = max(expected.get(token, 0), length)
            assert repetitions(seen, most) == expected


@pytest.mark.parametrize("heat", [1e-38, 1e-30, 1e-45])
@pytest.mark.parametrize("n", [0.5, 2.0])
def test_an_overflowing_temperature_leaves_the_likeliest(heat, n):
    chain = SamplerChain().add_temp(heat).add_top_n_sigma(n).add_dist(1)
    assert chain.choose(np.array([1.0, 5.0, 3.0, -2.0], "f4")) == 1
    tied = SamplerChain().add_temp(heat).add_top_n_sigma(n).add_min_p(0.1).add_dist(3)
    assert tied.choose(np.array([-7.0, 5.0, -9.0], "f4")) == 1


CHAINS = [
    {"dry_multiplier": 1.5, "dry_allowed_length": 1, "temperature": 0.3},
    {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    {"top_n_sigma": 1.5, "temperature": 1.4},
    {"dynatemp_range": 0.6, "dynatemp_exponent": 1.5},
    {"mirostat": 1, "mirostat_tau": 3.0},
    {"mirostat": 2, "mirostat_eta": 0.3},
    {"repeat_penalty": 1.4, "xtc_probability": 0.3, "top_n_sigma": 2.0, "dry_multiplier": 0.5},
]


def bridge_chain(model, o):
    """As llama.cpp's own programs build it of their options."""
    if o.mirostat == 1:
        steps = SamplerChain().add_temp(o.temperature)
        return steps.add_mirostat(model.n_vocab(), o.seed, o.mirostat_tau, o.mirostat_eta)
    if o.mirostat == 2:
        steps = SamplerChain().add_temp(o.temperature)
        return steps.add_mirostat_v2(o.seed, o.mirostat_tau, o.mirostat_eta)
    steps = SamplerChain().add_penalties(o.repeat_last_n, o.repeat_penalty)
    steps.add_dry(model, o.dry_multiplier, o.dry_base, o.dry_allowed_length, 10_000)
    steps.add_top_n_sigma(o.top_n_sigma).add_top_k(o.top_k).add_typical(1.0).add_top_p(o.top_p)
    steps.add_min_p(o.min_p).add_xtc(o.xtc_probability, o.xtc_threshold, 0, o.seed)
    return steps.add_temp_ext(o.temperature, o.dynatemp_range, o.dynatemp_exponent).add_dist(o.seed)


@pytest.mark.parametrize("options", CHAINS)
def test_a_chain_matches_generate_and_the_engine(story, served, options):
    prompt, count = "Tom and Ann ran and ran. Tom and Ann", 8
    given = SamplingOptions(**{"seed": 11, **options})
    chain = bridge_chain(story, given)
    tokens = story.tokenize(prompt)
    with Context(story, n_ctx=64) as context:
        context.decode(Batch.get_one(tokens))
        chain.accept_all(tokens)
        made = [chain.sample(context)]
        while len(made) < count:
            context.decode(Batch.get_one(made[-1:]))
            made.append(chain.sample(context))
    model, engine = served
    found = engine.complete(prompt, options=given, max_tokens=count).result().choices[0]
    assert list(found.tokens) == made
    text = model.generate(prompt, raw=True, options=given, num_predict=count)
    assert text == story.detokenize(made).decode() == found.text


@pytest.fixture(scope="module")
def served():
    with wgpu_backend.load(device="cpu", num_ctx=64) as model, wgpu_backend.Engine(model) as engine:
        yield model, engine
