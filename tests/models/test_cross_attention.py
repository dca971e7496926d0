"""Models of an encoder and a decoder: a prompt is read once, and every step sees all of it."""

import numpy as np
import pytest

import wgpu_backend
from tests.models.outlines import LOGITS, TOKENS, outlines, written
from tests.models.related import SOURCE
from tests.models.running import running
from tests.models.test_bad_architectures import changed
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import CacheFull, ContextError, ContextFull, ModelError
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.batch import Work
from wgpu_backend.nn.kvcache.encoded import EncodedCache
from wgpu_backend.nn.kvcache.layers import EncodedShape
from wgpu_backend.testing import nmse

OTHER = [9, 9, 77, 140]
GREEDY = {"temperature": 0.0, "repeat_penalty": 1.0}


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return written(tmp_path_factory.mktemp("t5") / "t5.gguf", outlines()["t5"])


@pytest.fixture
def model(t5):
    with wgpu_backend.load(t5, device="cpu", kv_dtype="f32", num_ctx=96) as model:
        yield model


def answer(asked, prompt, count=24):
    return list(asked.tokens(prompt, GREEDY, count))


def test_greedy_answers_are_llama_cpps(model):
    with np.load(LOGITS) as recorded:
        wanted = recorded["answer for t5"].tolist()
    got = answer(model, SOURCE)
    assert got == wanted[: len(got)]
    assert len(got) == 24 or wanted[len(got)] in model.tokenizer.eog_ids


def test_a_next_prompt_is_read_anew(model):
    first = answer(model, SOURCE)
    other = answer(model, OTHER)
    assert first != other
    assert answer(model, SOURCE) == first
    assert model.stats.prompt_tokens == len(SOURCE)


def test_sessions_have_texts_of_their_own(model):
    alone = [answer(model, SOURCE, 8), answer(model, OTHER, 8)]
    with model.session() as session:
        streams = [model.tokens(SOURCE, GREEDY, 8), session.tokens(OTHER, GREEDY, 8)]
        together = list(zip(*streams, strict=True))
    assert [list(tokens) for tokens in zip(*together, strict=True)] == alone


def test_sequences_of_a_batch_see_their_own_texts(t5):
    with running(t5, NumpyExecutor(), 128) as model:
        wanted = model.anew(TOKENS[:6])
        model.cache.remove(1)
        model.cache.remove(0)
        model.runner.read(0, SOURCE)
        model.runner.read(1, OTHER)
        model.runner.read(2, SOURCE[:-1])
        works = [Work(1, TOKENS[6:9], range(3)), Work(0, TOKENS[:6], range(6))]
        rows = model.runner.run(works, model.head, {}).wait()[0]
    assert nmse(rows[3:9], wanted) <= 1e-11  # only the order of sums differs


def test_a_copied_prefix_has_the_text_and_a_shift_leaves_it(t5):
    with running(t5, NumpyExecutor(), 64) as model:
        wanted = model.anew(TOKENS[:9])
        model.anew(TOKENS[:5])
        model.cache.copy_prefix(0, 1, 5)
        model.cache.remove(0)
        assert nmse(model.ask(TOKENS[5:9], sequence=1), wanted[5:9]) <= 1e-11
        model.cache.shift(1, 2, 4)
        assert model.cache.length(1) == 7
        assert np.isfinite(model.ask(TOKENS[9:11], sequence=1)).all()


def test_what_asks_for_scores_of_tokens_alone_is_told_to_generate(model):
    for ask in (lambda: model.logits([5, 6]), lambda: model.embed("the")):
        with pytest.raises(
            ModelError, match="t5 reads a prompt and writes an answer; use generate"
        ):
            ask()


def test_a_prompt_longer_than_the_context_is_refused(model):
    with pytest.raises(ContextFull, match="the prompt has 97 tokens, the context holds 96"):
        answer(model, [5] * 97)
    assert answer(model, [5] * 96, 2)


def test_embeddings_in_the_outputs_place_are_scaled(tmp_path, t5):
    with running(t5, NumpyExecutor(), 64) as model:
        assert model.model.logit_scale == 1
    outline = outlines()["t5"]
    del outline["weights"]["output.weight"]
    tied = written(tmp_path / "tied.gguf", outline)
    with running(tied, NumpyExecutor(), 64) as model:
        hidden = model.model.token_embedding.weight.numpy()
        logits = model.anew(TOKENS[:3])
        model.head = model.head.__class__("hidden", lambda _, states: [states])
        states = model.anew(TOKENS[:3])
    np.testing.assert_allclose(logits, states @ hidden.T / 8, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"decoder_start_token_id": 270}, "decoder_start_token_id' is 270, needs at most 269"),
        ({"decoder_block_count": 3}, "it has 2 layers, block_count is 3"),
        ({"attention__value_length": 8}, r"attn_v.weight is \(64, 64\), .* require \(32, 64\)"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, keys, said):
    path = changed(tmp_path / "t5.gguf", "t5", **keys)
    with pytest.raises(ModelError, match=said):
        wgpu_backend.load(path, device="cpu")


def test_texts_take_blocks_of_their_own():
    cache = EncodedCache(NumpyExecutor(), {0: EncodedShape(4, 4)}, 96, F32)
    assert len(cache.begin(0, 40)) == 40
    assert len(set(cache.begin(1, 32)) | set(cache.begin(0, 33))) == 65
    with pytest.raises(CacheFull, match="33 more positions need 2 blocks of 32, 0 are free"):
        cache.begin(2, 33)
    assert [cache.length(n) for n in range(3)] == [33, 32, 0]
    cache.share(1, 2, 5)
    cache.drop(1)
    assert cache.length(2) == 32
    with pytest.raises(ContextError, match="an encoder's pass writes it"):
        cache.put(0, None, None, None)
    cache.drop(2)
    cache.drop(0)
    assert len(cache.free_list()) == 3
    cache.close()
