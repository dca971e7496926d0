"""Scales of LoRA adapters that belong to a request alone."""

import threading

import pytest

import wgpu_backend
from tests.models.adapters import a_lora
from tests.patience import PATIENCE
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.errors import OptionError

PROMPT = [*range(3, 43)]  # so long that a prefix of it is kept
GREEDY = {"options": {"temperature": 0}, "max_tokens": 3, "logprobs": 0}
CASES = [None, [(0, 0.5)], [(1, 2.0), (0, 0.25)], [], [(0, 1.0), (1, -1.0)]]


@pytest.fixture(scope="module")
def loras(path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loras")
    return [a_lora(folder / f"{seed}.gguf", path, seed=seed) for seed in (1, 2)]


def told(result):
    [choice] = result.choices
    return [*choice.tokens], [each.logprob for each in choice.logprobs]


@pytest.fixture(scope="module")
def expected(path, loras):
    """What a model gives that was loaded with just these scales."""
    found = []
    for case in CASES:
        scales = {0: 1.0, 1: -1.0} if case is None else {0: 0.0, 1: 0.0, **dict(case)}
        given = [(file, scales[place]) for place, file in enumerate(loras)]
        with (
            wgpu_backend.load(path, device="cpu", adapters=given) as model,
            wgpu_backend.Engine(model) as engine,
        ):
            found.append(told(engine.complete(PROMPT, **GREEDY).result(PATIENCE)))
    assert len({tuple(logprobs) for _, logprobs in found}) == len(CASES) - 1  # 0 and 4 are alike
    return found


@pytest.fixture(scope="module")
def model(path, loras):
    given = [(loras[0], 1.0), (loras[1], -1.0)]
    with wgpu_backend.load(path, device="cpu", adapters=given, num_parallel=4) as model:
        yield model


def alike(found, expected):
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=1e-4)


def test_each_request_has_its_own_scales_in_any_company(model, expected):
    with wgpu_backend.Engine(model) as engine:
        for _ in range(2):  # the second time, prefixes of the first are there
            order = [0, 1, 2, 0, 3, 4]
            asked = [engine.complete(PROMPT, lora=CASES[case], **GREEDY) for case in order]
            made = [each.result(PATIENCE) for each in asked]
            for case, each in zip(order, made, strict=True):
                alike(told(each), expected[case])
                scaled = case not in (0, 4)
                assert not (scaled and each.usage.cached_tokens)
        assert made[0].usage.cached_tokens == made[5].usage.cached_tokens >= 32
        several = engine.complete(PROMPT, lora=CASES[1], n=3, **GREEDY).result(PATIENCE)
        assert [[*choice.tokens] for choice in several.choices] == [expected[1][0]] * 3


@pytest.mark.slow
def test_the_model_itself_keeps_the_scales_that_are_set(model, expected):
    own = model.logits(PROMPT[:9])
    with wgpu_backend.Engine(model) as engine:
        going = engine.complete(
            PROMPT, options={"temperature": 0}, max_tokens=30, lora=CASES[1], ignore_eos=True
        )
        seen = [model.logits(PROMPT[:9]) for _ in range(3)]
        going.result(PATIENCE)
        for each in seen:
            assert (each == own).all()
    assert [scale for _, scale in model.loras] == [1.0, -1.0]


def test_requests_of_other_scales_wait_in_the_order_in_which_they_came(model):
    with wgpu_backend.Engine(model) as engine:
        ended: list[int] = []
        threads = []
        asked = [
            engine.complete(PROMPT[:8], options={"temperature": 0}, max_tokens=m, lora=lora,
                            ignore_eos=True)
            for m, lora in ((20, None), (1, [(0, 0.5)]), (1, None))
        ]  # fmt: skip
        for place, each in enumerate(asked):
            wait = threading.Thread(target=lambda p=place, e=each: (e.result(), ended.append(p)))
            wait.start()
            threads.append(wait)
        for each in threads:
            each.join(PATIENCE)
    assert ended.index(1) > ended.index(0)


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ([(2, 1.0)], "lora: id 2, the model has 2 adapters"),
        ([(-1, 1.0)], "lora: -1, needs 0 to"),
        ([(0, "1")], "lora: scale '1'"),
        ([(0, float("nan"))], "lora: scale nan of id 0, needs -1000 to 1000"),
        ([5], "lora: 5"),
        ("01", "lora: '01'"),
    ],
)
def test_what_cannot_be_is_refused(model, lora, said):
    with wgpu_backend.Engine(model) as engine, pytest.raises(OptionError, match=said):
        engine.submit(Request([5], lora=lora))
