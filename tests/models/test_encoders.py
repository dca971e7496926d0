"""Encoders: a text is one pass, whose tokens see each other; vectors come of it, and no logits."""

import numpy as np
import pytest

import wgpu_backend
from tests.models.outlines import LOGITS, TOKENS, a_reranker, outlines, written
from tests.models.related import POOLED
from tests.models.running import running
from tests.models.test_bad_architectures import changed
from wgpu_backend.engine.runner import CHUNK, HIDDEN, Head
from wgpu_backend.errors import ContextFull, ModelError, OptionError
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.batch import Work
from wgpu_backend.testing import nmse
from wgpu_backend.text.tokenizer import Tokenizer

ENCODERS = [
    name
    for name, found in outlines().items()
    if "bert" in name or found["architecture"] == "t5encoder"
]
LONG = np.random.default_rng(1).integers(4, 250, CHUNK + 44).tolist()


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return changed(tmp_path_factory.mktemp("encoders") / "bert.gguf", "bert")


@pytest.fixture(scope="module")
def model(bert):
    with wgpu_backend.load(bert, device="cpu", kv_dtype="f32") as model:
        yield model


@pytest.mark.parametrize("name", ["eurobert", "jina-bert-v2", "t5encoder"])
def test_a_text_longer_than_a_chunk_is_seen_to_its_end_by_its_first_token(tmp_path, name):
    path = changed(tmp_path / "model.gguf", name, context_length=512)
    with wgpu_backend.load(path, device="cpu") as model:
        first = model.states(LONG)[0]
        assert np.array_equal(first, model.states(LONG)[0])
        assert not np.array_equal(first, model.states([*LONG[:-1], LONG[-1] ^ 1])[0])


@pytest.mark.parametrize(("name", "around"), [("modern-bert", 4), ("gemma-embedding", 4)])
def test_a_window_reaches_half_of_it_to_both_sides(tmp_path, name, around):
    # Of layers with a window all; one more sees a window further.
    layers = outlines()[name]["keys"][f"{name}.block_count"]
    pattern = [True] * layers
    path = changed(
        tmp_path / "model.gguf", name, attention__sliding_window_pattern=pattern, context_length=512
    )
    with running(path, NumpyExecutor(), 128) as model:
        reach = layers * around
        tokens = LONG[: 2 * reach + 3]
        before = model.anew(tokens)
        tokens[reach + 1] ^= 1
        differs = (model.anew(tokens) != before).any(axis=1)
        assert differs.tolist() == [False, *[True] * (2 * reach + 1), False]


def test_texts_of_a_batch_do_not_see_each_other(bert):
    with running(bert, NumpyExecutor(), 128) as model:
        alone = model.anew(LONG[:9])
        model.cache.remove(0)
        together = model.batch({1: LONG[9:30], 0: LONG[:9]})[1]
        assert nmse(together, alone) <= 1e-11  # only the order of sums differs


def test_types_of_tokens_are_given_beside_them(bert):
    with running(bert, NumpyExecutor(), 64) as model:

        def states(inputs):
            model.cache.remove(0)
            work = Work(0, LONG[:8], range(8), inputs)
            return model.runner.run([work], HIDDEN, {}).wait()[0]

        without = states({})
        np.testing.assert_array_equal(states({"token_types": np.zeros(8, np.int32)}), without)
        second = np.repeat(np.array([0, 1], np.int32), 4)
        assert (states({"token_types": second}) != without).all(axis=1).all()


@pytest.mark.parametrize("name", ENCODERS)
def test_what_is_asked_of_an_encoder_that_has_no_next_token_says_embed(tmp_path, name):
    path = changed(tmp_path / "model.gguf", name)
    with wgpu_backend.load(path, device="cpu") as model:
        said = "is an encoder and has no logits; use embed"
        for ask in (lambda: model.generate("the"), lambda: model.logits([5, 6])):
            with pytest.raises(ModelError, match=said):
                ask()
        assert model.embed("the").shape == (1, 64)


@pytest.mark.parametrize(
    ("number", "pooling", "of"),
    [
        (None, None, lambda states: states.mean(axis=0)),
        (1, None, lambda states: states.mean(axis=0)),
        (2, None, lambda states: states[0]),
        (3, None, lambda states: states[-1]),
        (2, "mean", lambda states: states.mean(axis=0)),
        (0, "last", lambda states: states[-1]),
        (1, "max", lambda states: states.max(axis=0)),
        (1, "weightedmean", lambda states: np.arange(1, len(states) + 1) @ states),
        (1, "mean_sqrt_len", lambda states: states.sum(axis=0)),
        (1, "cls+mean", lambda states: np.concatenate([states[0], states.mean(axis=0)])),
    ],
)
def test_states_are_pooled_as_the_caller_or_the_file_says(tmp_path, number, pooling, of):
    path = changed(tmp_path / "model.gguf", "bert", pooling_type=number)
    with wgpu_backend.load(path, device="cpu") as model:
        wanted = of(model.states(model.tokenizer.encode("the and")))
        [got] = model.embed("the and", pooling=pooling)
    np.testing.assert_allclose(got, wanted / np.linalg.norm(wanted), rtol=1e-6)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (
            0,
            r"pooling_type is 0 \(none\), which gives no embedding of a text; pass pooling= one",
        ),
        (9, "pooling_type is 9, needs 0 to 4"),
    ],
)
def test_a_file_that_names_no_pooling_is_told_so(tmp_path, number, said):
    path = changed(tmp_path / "model.gguf", "bert", pooling_type=number)
    with wgpu_backend.load(path, device="cpu") as model, pytest.raises(ModelError, match=said):
        model.embed("the")


def test_a_pooling_that_there_is_not_is_refused(model):
    with pytest.raises(
        OptionError, match="pooling: 'mean\\+sum' is unknown, needs one of mean, cls"
    ):
        model.embed("the", pooling="mean+sum")


def test_a_text_longer_than_the_positions_is_refused(model):
    with pytest.raises(ContextFull, match="states: 65 tokens, the context holds 1 to 64"):
        model.states(LONG[:65])


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    return a_reranker(tmp_path_factory.mktemp("rerankers") / "bert.gguf")


def test_a_score_is_llama_cpps(reranker, monkeypatch):
    monkeypatch.setattr(Tokenizer, "encode_pair", lambda *_: (TOKENS, [0] * len(TOKENS)))
    with wgpu_backend.load(reranker, device="cpu", kv_dtype="f32") as model:
        score = model.rerank("the", "and")
    np.testing.assert_allclose(score, [-2.044614553451538], atol=3e-4)  # its GELU has a tangent


@pytest.mark.parametrize("name", POOLED)
def test_what_is_made_of_a_pooled_state_is_llama_cpps(tmp_path, monkeypatch, name):
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: TOKENS)
    monkeypatch.setattr(Tokenizer, "encode_pair", lambda *_: (TOKENS, [0] * len(TOKENS)))
    how, make = POOLED[name]
    path = written(tmp_path / "model.gguf", make(outlines()))
    with np.load(LOGITS) as recorded:
        wanted = recorded[name]
    with wgpu_backend.load(path, device="cpu", kv_dtype="f32") as model:
        if how == "rank":
            got = model.rerank("the", "and")
        else:
            [got], wanted = model.embed("the"), wanted / np.linalg.norm(wanted)
    assert nmse(got, wanted) <= (1e-11 if name.startswith("qwen") else 1e-6)  # GELU by a table


def test_a_file_says_how_query_and_text_stand_together(tmp_path):
    outline = POOLED["qwen3-reranker"][1](outlines())
    template = "<|begin|>{document} of {query}<|end|>"
    outline["keys"]["tokenizer.chat_template.rerank"] = template
    path = written(tmp_path / "model.gguf", outline)
    with wgpu_backend.load(path, device="cpu") as model:
        ids, types = model.prompter.pair("{document}", "<|end|>")
        scores = model.rerank("the", ["and", "in"])
        assert model.tokenizer.decode(ids[1:-1]) == "<|end|> of {document}"
        assert [ids[0], ids[-1]] == [model.tokenizer.bos_id, model.tokenizer.eos_id]
    assert types == [0] * len(ids)
    assert ((scores > 0) & (scores < 1)).all()
    assert scores[0] != scores[1]


def test_a_causal_model_is_pooled_by_its_last_token_where_the_file_says_so(tmp_path):
    path = changed(tmp_path / "model.gguf", "qwen3", pooling_type=3)
    with wgpu_backend.load(path, device="cpu") as model:
        wanted = model.states(model.tokenizer.encode("the and"))[-1]
        [got] = model.embed("the and")
    np.testing.assert_allclose(got, wanted / np.linalg.norm(wanted), rtol=1e-6)


def test_texts_are_scored_beside_a_query(reranker):
    with wgpu_backend.load(reranker, device="cpu", kv_dtype="f32") as model:
        pair, types = model.tokenizer.encode_pair("the", "and on")
        got = model.rerank("the", ["and on", "in"])
        with pytest.raises(ModelError, match=r"pooling_type is 4 \(rank\), .* or rerank\(\)"):
            model.embed("the")
    with running(reranker, NumpyExecutor(), 64) as model:
        work = Work(0, pair, [0], {"token_types": np.array(types, np.int32)})
        head = Head("scores", lambda _, hidden: [model.model.score(hidden)])
        [wanted, *_] = model.runner.run([work], head, {}).wait()[0][:, 0]
    np.testing.assert_allclose(got[0], wanted, rtol=1e-5)
    assert got[0] != got[1]


def test_what_has_no_weights_for_scores_cannot_rerank(model, monkeypatch):
    monkeypatch.setattr(Tokenizer, "encode_pair", lambda *_: ([5, 6], [0, 1]))
    with pytest.raises(ModelError, match="it is not a reranker: it has no weights"):
        model.rerank("the", ["and"])
