"""A request with a seed gives the same tokens alone and among others."""

import numpy as np
import pytest

import wgpu_backend
from tests.builders import WEIGHT_TYPES, tiny_model
from tests.models.outlines import outlines, written
from tests.models.running import running
from tests.patience import PATIENCE
from wgpu_backend import Engine, Request
from wgpu_backend.engine.runner import Work
from wgpu_backend.errors import OptionError
from wgpu_backend.nn.batch import BatchShape
from wgpu_backend.ops.op import fusions

STORY = ("Once upon a time there was a", "Tell me a story about a fox.", "One day", "A bear named")
# Rows and results of passes over prompts and of steps, with seats for four.
PROMPTS, STEPS = (16, 8, 4), (4, 4, 4)
GREEDY = {"temperature": 0}
POSITIONS = 1024  # enough that attention is cut in parts
SUBJECT = [5, 6, 7, 8, 9]


def alone_and_among_others(model, requests, **arguments):
    """Tokens of each request by itself, and of all of them at once."""
    with Engine(model, prefix_cache=False, **arguments) as engine:
        alone = [engine.submit(each).result(PATIENCE).choices[0].tokens for each in requests]
    with Engine(model, **arguments) as engine:
        made = [engine.submit(each) for each in requests]
        return alone, [each.result(PATIENCE).choices[0].tokens for each in made]


def requests_of(prompts, count, tokens):
    return [
        Request(prompts[i % len(prompts)], {"seed": i, "temperature": 1.0}, max_tokens=tokens)
        for i in range(count)
    ]


def test_numpy_is_refused(path):
    with wgpu_backend.load(path, device="cpu") as model:
        with pytest.raises(OptionError, match="device 'cpu' multiplies with NumPy"):
            Engine(model, deterministic=True)
        Engine(model).close()


def test_the_same_tokens_whoever_is_beside(path, full):
    prompts = [list(range(n, n + 30 + 7 * n)) for n in range(5)]
    with wgpu_backend.load(path, device=full.info, num_parallel=8) as model:
        many = requests_of(prompts, 7, 6)
        alone, beside = alone_and_among_others(model, many, deterministic=True, batch_tokens=32)
    assert beside == alone


@pytest.mark.slow
def test_windows_and_a_prompt_that_goes_on_from_an_answer(tmp_path, full):
    path = written(tmp_path / "model.gguf", outlines()["gemma3"])
    prompts = [[5 + i % 9 for i in range(n)] for n in (50, 3, 20, 61)]
    with wgpu_backend.load(path, device=full.info, num_ctx=128, num_parallel=4) as model:
        many = requests_of(prompts, 4, 6)
        alone, beside = alone_and_among_others(model, many, deterministic=True, batch_tokens=32)
        assert beside == alone
        # What was made in steps is not what a prompt's passes make of it: only the prompt is kept.
        follow = Request([*prompts[0], *alone[0], 7], many[0].options, max_tokens=5)
        with Engine(model, deterministic=True, batch_tokens=32) as engine:
            engine.submit(many[0]).result(PATIENCE)
            made = engine.submit(follow).result(PATIENCE)
        assert 0 < made.usage.cached_tokens <= len(prompts[0])
        [[expected], _] = alone_and_among_others(
            model, [follow], deterministic=True, batch_tokens=32
        )
        assert made.choices[0].tokens == expected


@pytest.mark.slow
def test_room_that_is_short_changes_nothing(path, full):
    with wgpu_backend.load(path, device=full.info, num_ctx=128) as model:
        many = [Request([n] * 50, {"seed": n}, max_tokens=16) for n in range(3)]
        how = {"deterministic": True, "num_parallel": 4, "batch_tokens": 32}
        alone, beside = alone_and_among_others(model, many, **how)
    assert beside == alone


@pytest.mark.parametrize(
    ("name", "window", "num_ctx", "batch_tokens"),
    [
        pytest.param("llama", 0, 512, 64, marks=[pytest.mark.slow]),
        pytest.param("gemma3", 8, 128, 32, marks=[pytest.mark.slow]),
        pytest.param("gemma3", 8, 128, 256, marks=[pytest.mark.slow]),
        pytest.param("gemma3", 600, 1024, 64, marks=[pytest.mark.slow]),
    ],
)
def test_logprobs_have_the_same_bits_whoever_is_beside(
    tmp_path, full, rng, name, window, num_ctx, batch_tokens
):
    """Long caches are cut in parts, windows begin in blocks: neither may follow a tile's tokens."""
    outline = outlines()[name]
    outline["keys"] |= {f"{name}.attention.sliding_window": window} if window else {}
    outline["keys"][f"{name}.context_length"] = num_ctx
    path = written(tmp_path / "model.gguf", outline)
    lengths = rng.integers(num_ctx // 8, num_ctx - 8, 6)
    how = {"max_tokens": 4, "logprobs": 0, "ignore_eos": True}
    many = [Request(rng.integers(4, 90, n).tolist(), GREEDY, **how) for n in lengths]
    with (
        wgpu_backend.load(path, device=full.info, num_ctx=num_ctx, num_parallel=4) as model,
        Engine(model, deterministic=True, prefix_cache=False, batch_tokens=batch_tokens) as engine,
    ):
        alone = [logprobs_of(engine.submit(each)) for each in many]
        assert list(map(logprobs_of, list(map(engine.submit, many)))) == alone


def logprobs_of(generation):
    return [each.logprob for each in generation.result(PATIENCE).choices[0].logprobs]


@pytest.mark.slow
def test_prompts_that_are_judged_change_no_bit_of_others(path, full, rng):
    how = {"max_tokens": 3, "logprobs": 0, "ignore_eos": True}
    texts = [rng.integers(4, 90, n).tolist() for n in (70, 33, 70)]
    many = [Request(each, GREEDY, **how, prompt_logprobs=i < 2) for i, each in enumerate(texts)]
    with (
        wgpu_backend.load(path, device=full.info, num_ctx=128, num_parallel=4) as model,
        Engine(model, deterministic=True, batch_tokens=64) as engine,
    ):
        alone = [judged_of(engine.submit(each)) for each in many]
        assert list(map(judged_of, list(map(engine.submit, many)))) == alone
    assert [len(each) for each in alone] == [72, 35, 3]


def judged_of(generation):
    [choice] = generation.result(PATIENCE).choices
    return [each.logprob for each in (*choice.prompt_logprobs, *choice.logprobs)]


@pytest.mark.slow
def test_a_shifted_context_that_gave_its_room_says_the_same(path, full):
    prompts = [[n] * 20 for n in (5, 6)] + [list(range(7, 127))]
    how = {"max_tokens": 90, "when_full": "shift", "ignore_eos": True}
    many = [Request(each, GREEDY, **how) for each in prompts]
    with wgpu_backend.load(path, device=full.info, num_ctx=128, num_parallel=2) as model:
        given = {"deterministic": True, "num_parallel": 3, "batch_tokens": 64}
        alone, beside = alone_and_among_others(model, many, **given)
    assert beside == alone


def at_places(model, rng):
    """Logits of one text's prompt and of two steps behind it, from every place among others."""
    found = []
    for place in range(4):
        drawn = [rng.integers(4, 250, rng.integers(1, 4)).tolist() for _ in range(3)]
        others = drawn if place else []  # first alone
        texts = [*others[:place], SUBJECT, *others[place:]]
        for sequence in range(4):
            model.cache.remove(sequence)
        rows = [logits_of(model, texts, PROMPTS)[place]]
        for token in (3, 4):
            texts = [[token] if n == place else [n + 9] for n in range(len(texts))]
            rows.append(logits_of(model, texts, STEPS)[place])
        found.append(np.stack(rows))
    return found


def logits_of(model, texts, sizes):
    """Logits of the last token of each text in a pass of that size, as bits."""
    shape = BatchShape(*sizes, model.cache.reach(POSITIONS, sizes[0]))
    works = [Work(n, text, (len(text) - 1,)) for n, text in enumerate(texts)]
    return np.array(model.runner.run(works, model.head, {}, shape).wait()[0]).view(np.uint32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "how"),
    [
        ("full", "f16", "exact"),
        ("full", "q4_0", "default"),
        pytest.param("full", "mixtral", "exact", marks=pytest.mark.slow),
        pytest.param("wide", "q4_0", "coarse", marks=pytest.mark.slow),
        pytest.param("wide", "q8_0", "default", marks=pytest.mark.slow),
        pytest.param("wide", "mixtral", "exact", marks=pytest.mark.slow),
    ],
)
@pytest.mark.gpu
def test_bits_of_a_row_hang_on_nothing_beside_it(
    tmp_path, executors, monkeypatch, rng, kind, name, how
):
    executor, path = executors(kind), tmp_path / "model.gguf"
    rules = fusions(True, exact=how == "exact", coarse=how == "coarse")
    monkeypatch.setattr(executor, "rules", rules)
    if name in WEIGHT_TYPES:
        tiny_model(path, "llama", name)
    else:
        written(path, outlines()[name])
    with running(path, executor, POSITIONS) as model:
        first, *others = at_places(model, rng)
    for found in others:
        np.testing.assert_array_equal(found, first)


@pytest.mark.slow
def test_fifty_stories_alone_and_sixteen_at_a_time(full):
    with wgpu_backend.load(device=full.info, num_ctx=256, num_parallel=16) as model:
        prompts = [model.prompter.raw(each) for each in STORY]
        many = requests_of(prompts, 50, 30)
        alone, beside = alone_and_among_others(model, many, deterministic=True, batch_tokens=64)
        assert beside == alone
