"""How a step's tokens are shared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Dims, tiny_model
from tests.patience import PATIENCE
from wgpu_backend import Engine, Request
from wgpu_backend.dtypes import F32
from wgpu_backend.engine.batching.loop import fair_shares, step_shares
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.runner import Runner
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.model import model_class

counts = st.lists(st.integers(0, 5000), max_size=33)


@pytest.mark.parametrize(
    ("wanted", "budget", "given"),
    [
        ([], 256, []),
        ([10], 256, [10]),
        ([4000, 20], 256, [236, 20]),
        ([4000, 4000, 20], 256, [118, 118, 20]),
        ([5, 5, 5], 2, [1, 1, 0]),
        ([5, 0, 5], 7, [4, 0, 3]),
        ([7], 0, [0]),
    ],
)
def test_what_one_does_not_need_goes_to_the_others(wanted, budget, given):
    assert fair_shares(wanted, budget) == given


@given(counts, st.integers(0, 600))
def test_a_budget_is_spent_where_it_is_wanted_and_nobody_has_more_than_the_hungry(wanted, budget):
    given = fair_shares(wanted, budget)
    assert sum(given) == min(budget, sum(wanted))
    assert all(0 <= g <= w for g, w in zip(given, wanted, strict=True))
    hungry = [g for g, w in zip(given, wanted, strict=True) if g < w]
    assert max(given, default=0) <= min(hungry, default=5000) + 1


@given(counts, st.integers(33, 600))
def test_who_makes_tokens_always_gets_one(pending, budget):
    given = step_shares(pending, budget)
    assert all(g == 1 for g, p in zip(given, pending, strict=True) if p == 1)
    assert sum(given) <= budget


def test_a_short_prompt_is_read_in_its_first_step_beside_a_long_one_and_seven_answers():
    assert step_shares([4096, 40, *[1] * 7], 256) == [81, 40, *[1] * 7]
    assert step_shares([4096, 4096, *[1] * 7], 256) == [125, 124, *[1] * 7]
    assert step_shares([4096, 127, 1], 256) == [128, 127, 1]


def passes(monkeypatch):
    """Tokens of each pass from now on."""
    found = []
    shape_of = Runner.shape_of

    def noted(runner, works, count=1):
        found.append(sum(len(work.tokens) for work in works))
        return shape_of(runner, works, count)

    monkeypatch.setattr(Runner, "shape_of", noted)
    return found


@pytest.mark.parametrize(("software", "longest"), [(False, 512), (True, 256)])
def test_a_request_alone_takes_longer_steps_on_a_gpu(tmp_path, monkeypatch, software, longest):
    path = tiny_model(tmp_path / "m.gguf", dims=Dims(context=1024))
    backend = Backend(open_gguf(path), NumpyExecutor(Capabilities(software=software)))
    backend.load(fused_weights=model_class(backend.config).fused_weights)
    prompt = [5 + i % 200 for i in range(700)]
    found = passes(monkeypatch)
    with LanguageModel(backend, 1024, F32, num_parallel=2) as model:
        model.generate("a b c d " * 80, raw=True, num_predict=1)
        assert found[0] == longest
        found.clear()
        with Engine(model, prefix_cache=False) as engine:
            alone = engine.submit(Request(prompt, {"temperature": 0}, max_tokens=1)).result(
                PATIENCE
            )
            assert found[:2] == [longest, min(700 - longest, longest)]
            found.clear()
            both = [
                engine.submit(Request(prompt, {"temperature": 0}, max_tokens=2)) for _ in range(2)
            ]
            assert [each.result(PATIENCE).choices[0].tokens[:1] for each in both] == [
                alone.choices[0].tokens[:1]
            ] * 2
        found.clear()
        with Engine(model, batch_tokens=64, prefix_cache=False) as engine:
            engine.submit(Request(prompt, {"temperature": 0}, max_tokens=1)).result(PATIENCE)
            assert max(found) == 64
