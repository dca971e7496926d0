"""A request with a seed gives the same tokens alone and among others."""

import pytest

import wgpu_backend
from tests.models.outlines import outlines, written
from wgpu_backend import Engine, Request

STORY = ("Once upon a time there was a", "Tell me a story about a fox.", "One day", "A bear named")


def alone_and_among_others(model, requests, **arguments):
    """Tokens of each request by itself, and of all of them at once."""
    with Engine(model, prefix_cache=False, **arguments) as engine:
        alone = [engine.submit(each).result(600).choices[0].tokens for each in requests]
    with Engine(model, **arguments) as engine:
        made = [engine.submit(each) for each in requests]
        return alone, [each.result(600).choices[0].tokens for each in made]


def requests_of(prompts, count, tokens):
    return [
        Request(prompts[i % len(prompts)], {"seed": i, "temperature": 1.0}, max_tokens=tokens)
        for i in range(count)
    ]


@pytest.mark.parametrize("device", ["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)])
def test_the_same_tokens_whoever_is_beside(path, device, request):
    info = "cpu" if device == "cpu" else request.getfixturevalue("full").info
    prompts = [list(range(n, n + 30 + 7 * n)) for n in range(5)]
    with wgpu_backend.load(path, device=info, num_parallel=8) as model:
        many = requests_of(prompts, 7, 6)
        alone, beside = alone_and_among_others(model, many, deterministic=True, batch_tokens=32)
    assert beside == alone


def test_windows_and_a_prompt_that_goes_on_from_an_answer(tmp_path):
    path = written(tmp_path / "model.gguf", outlines()["gemma3"])
    prompts = [[5 + i % 9 for i in range(n)] for n in (50, 3, 20, 61)]
    with wgpu_backend.load(path, device="cpu", num_ctx=128, num_parallel=4) as model:
        many = requests_of(prompts, 4, 6)
        alone, beside = alone_and_among_others(model, many, deterministic=True, batch_tokens=32)
        assert beside == alone
        # What was made in steps is not what a prompt's passes make of it: only the prompt is kept.
        follow = Request([*prompts[0], *alone[0], 7], many[0].options, max_tokens=5)
        with Engine(model, deterministic=True, batch_tokens=32) as engine:
            engine.submit(many[0]).result(60)
            made = engine.submit(follow).result(60)
        assert 0 < made.usage.cached_tokens <= len(prompts[0])
        [[expected], _] = alone_and_among_others(
            model, [follow], deterministic=True, batch_tokens=32
        )
        assert made.choices[0].tokens == expected


def test_room_that_is_short_changes_nothing(path):
    with wgpu_backend.load(path, device="cpu", num_ctx=128) as model:
        many = [Request([n] * 50, {"seed": n}, max_tokens=16) for n in range(3)]
        how = {"deterministic": True, "num_parallel": 4, "batch_tokens": 32}
        alone, beside = alone_and_among_others(model, many, **how)
    assert beside == alone


@pytest.mark.slow
def test_fifty_stories_alone_and_sixteen_at_a_time():
    with wgpu_backend.load(device="cpu", num_ctx=256, num_parallel=16) as model:
        prompts = [model.prompter.raw(each) for each in STORY]
        many = requests_of(prompts, 50, 30)
        alone, beside = alone_and_among_others(model, many, deterministic=True, batch_tokens=64)
        assert beside == alone
