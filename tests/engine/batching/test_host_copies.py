"""Prefixes that the device has no room for."""

import wgpu_backend
from tests.patience import PATIENCE
from wgpu_backend import Engine, Request


def test_the_host_keeps_what_the_device_has_no_room_for(path):
    prompts = [[n + 5] * 100 for n in range(3)]
    with wgpu_backend.load(path, device="cpu", num_ctx=128) as model:

        def answers(**arguments):
            with Engine(model, **arguments) as engine:
                asked = [Request.of(p, options={"seed": 3}, max_tokens=6) for p in prompts * 2]
                return [engine.submit(each).result(PATIENCE) for each in asked]

        without, found = answers(), answers(host_cache=1 << 24)
        small = answers(host_cache=4096)
    assert [each.usage.cached_tokens for each in without] == [0] * 6
    assert [each.usage.cached_tokens for each in small] == [0] * 6
    assert [each.usage.cached_tokens for each in found] == [0, 0, 0, 99, 99, 99]
    assert [each.choices[0].tokens for each in found] == [
        each.choices[0].tokens for each in without
    ]


def test_copies_on_the_host_have_a_bound_and_the_oldest_go(path):
    prompts = [[n + 5] * 64 + [9] for n in range(6)]
    with (
        wgpu_backend.load(path, device="cpu", num_ctx=96) as model,
        Engine(model, host_cache=100_000) as engine,
    ):
        for prompt in prompts:
            engine.complete(prompt, max_tokens=1).result(PATIENCE)
        copies = engine._core.prefixes._copies
        assert 0 < copies.nbytes <= 100_000
        assert engine.complete(prompts[0], max_tokens=1).result(PATIENCE).usage.cached_tokens == 0
        assert engine.complete(prompts[-2], max_tokens=1).result(PATIENCE).usage.cached_tokens == 64
        engine.clear_cache()
        assert copies.nbytes == 0
        assert engine.complete(prompts[-2], max_tokens=1).result(PATIENCE).usage.cached_tokens == 0
