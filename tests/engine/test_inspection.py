"""The inspector shows what the model computes."""

import dataclasses

import numpy as np
import pytest

import wgpu_backend as wb
from tests.models.outlines import outlines, written
from wgpu_backend.errors import ContextFull, OptionError
from wgpu_backend.nn import attention
from wgpu_backend.nn.attention_weights import attention_weights
from wgpu_backend.nn.batch import Attended


@pytest.fixture(scope="module", params=["cpu", pytest.param("software", marks=pytest.mark.gpu)])
def model(request):
    if request.param not in {info.kind for info in wb.Devices()}:
        pytest.skip(f"there is no {request.param} device here")
    with wb.load(device=request.param, num_ctx=64) as opened:
        yield opened


@pytest.mark.slow
def test_weights_of_attention_make_of_the_values_what_the_layer_does(model, monkeypatch):
    seen = []
    attend = attention.attend

    def noted(layer, q, k, v, batch, **options):
        y = attend(layer, q, k, v, batch, **options)
        if layer == 1:
            seen.append((v, y))
        return y

    monkeypatch.setattr(attention, "attend", noted)
    tokens = model.tokenizer.encode("Once upon a time there was a fox")
    weights = model.attention(tokens, 1)
    heads, count = weights.shape[0], len(tokens)
    assert weights.shape == (heads, count, count)
    assert weights.sum(-1) == pytest.approx(np.ones((heads, count)), abs=1e-5)
    assert not np.triu(weights, 1).any()
    v, y = values_of(model, tokens, seen)
    group = heads // v.shape[1]
    wanted = np.einsum("hqk,khd->qhd", weights, np.repeat(v, group, 1)).reshape(count, -1)
    assert y == pytest.approx(wanted, abs=2e-2 * float(np.abs(wanted).max()))


def values_of(model, tokens, seen):
    """Values of the layer, and what it gave, of a pass of the same tokens."""
    from wgpu_backend.engine.runner import Head, make_runner
    from wgpu_backend.nn.batch import Work

    runner = make_runner(model.model, model.cache)
    count = len(tokens)
    session = model._session
    model.cache.remove(session.sequence)
    head = Head("values", lambda *_: list(seen[-1]))
    v, y = runner.run([Work(session.sequence, tokens, range(count))], head, {}).wait()
    runner.close()
    model.cache.remove(session.sequence)
    return v[:count], y[:count]


def test_an_answer_is_the_same_after_a_look(model):
    fixed = {"options": {"temperature": 0}, "num_predict": 4, "raw": True}
    before = model.generate("Once upon a time", **fixed)
    model.attention(model.tokenizer.encode("Once upon a time there"), 0)
    model.graphs(8)
    assert model.generate("Once upon a time", **fixed) == before


def test_what_cannot_be_looked_at_is_told(model):
    with pytest.raises(OptionError, match="layer: 99, the model has 0 to"):
        model.attention([1], 99)
    with pytest.raises(ContextFull, match="attention: 65 tokens, needs 1 to 64"):
        model.attention([1] * 65, 0)
    with pytest.raises(ContextFull, match="0 tokens"):
        model.attention([], 0)
    with pytest.raises(OptionError, match="inspect: 'soul'"):
        model.inspect("soul", {})


def test_looks_are_plain_data(model):
    import json

    found = {
        "attention": model.inspect("attention", {"tokens": [1, 2, 3], "layer": 0}),
        "graphs": model.inspect("graphs", {"prompt": 500}),
        "memory": model.inspect("memory", {}),
    }
    plain = json.loads(json.dumps(found))
    assert len(plain["attention"]["weights"][0]) == 3
    assert plain["graphs"]["passes"][1]["name"] == "prompt of 63 tokens"
    assert plain["memory"]["weights"] > plain["memory"]["cache"] > 0


def test_layers_whose_scores_have_more_in_them_are_refused(model):
    with model.backend.new_context() as context:
        q = context.zeros(4, 2, 8)
        plain = Attended(q, q, 1.0, 0.0, 0, 0, 0, True, None, "")
        for changed, what in (({"besides": "alibi"}, "alibi"), ({"k": None}, "another layer")):
            with pytest.raises(wb.ModelError, match=f"{what} has no attention weights"):
                attention_weights(dataclasses.replace(plain, **changed), 4)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"window": 2}, lambda i, j: 0 <= i - j < 2),
        ({"chunk": 2}, lambda i, j: j <= i and i // 2 == j // 2),
        ({"causal": False, "symmetric_window": 2}, lambda i, j: abs(i - j) <= 1 and j < 3),
        ({"softcap": 5.0}, lambda i, j: j <= i),
    ],
)
def test_what_a_token_sees(model, options, seen):
    with model.backend.new_context() as context:
        q = context.from_numpy(np.random.default_rng(1).normal(size=(4, 2, 8)).astype(np.float32))
        plain = Attended(q, q, 1.0, 0.0, 0, 0, 0, True, None, "")
        found = attention_weights(dataclasses.replace(plain, **options), 3).numpy()[:3, :, :3]
    wanted = np.array([[seen(i, j) for j in range(3)] for i in range(3)])
    assert np.array_equal(found > 0, np.broadcast_to(wanted[:, None], found.shape))
    assert found.sum(-1) == pytest.approx(np.ones((3, 2)), abs=1e-5)


def test_a_sink_takes_its_share(model):
    with model.backend.new_context() as context:
        q = context.zeros(2, 1, 8)
        sinks = context.from_numpy(np.zeros(1, np.float32))
        attended = Attended(q, q, 1.0, 0.0, 0, 0, 0, True, sinks, "")
        found = attention_weights(attended, 2).numpy()[:, 0]
    assert found == pytest.approx(np.array([[1 / 2, 0], [1 / 3, 1 / 3]]), abs=1e-6)


@pytest.mark.parametrize(("name", "refused"), [("bert", ""), ("t5encoder", "a bias by distance")])
def test_encoders_are_looked_into(tmp_path, name, refused):
    path = written(tmp_path / "model.gguf", outlines()[name])
    with wb.load(path, device="cpu") as encoder:
        assert len(encoder.inspect("graphs", {"prompt": 4})["passes"]) == 2
        if refused:
            with pytest.raises(wb.ModelError, match=refused):
                encoder.attention([1, 2, 3], 0)
        else:
            assert (encoder.attention([1, 2, 3], 0) > 0).all()  # the first sees the last
