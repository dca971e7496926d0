"""Model inputs in addition to tokens: embeddings in their places, positions along several axes."""

import numpy as np
import pytest

from tests.models.outlines import LOGITS, ROWS, TOKENS, outlines, written
from tests.models.related import OF_IMAGES, WIDTH, given_to
from tests.models.running import running
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.batch import Work
from wgpu_backend.testing import nmse

OUTLINES = outlines()


def asked(model, inputs, tokens=TOKENS, others=()):
    """Logits of a sequence that is given something; `others` are further works of the pass."""
    model.cache.remove(0)
    work = Work(0, tokens, range(len(tokens)), inputs)
    rows = model.runner.run([work, *others], model.head, {}).wait()[0]
    return rows[: len(tokens)]


@pytest.fixture(params=OF_IMAGES)
def seeing(request, tmp_path):
    path = written(tmp_path / "model.gguf", OUTLINES[request.param])
    with running(path, NumpyExecutor(), 64) as model:
        model.name = request.param
        yield model


def test_logits_of_an_image_are_llama_cpps(seeing):
    with np.load(LOGITS) as recorded:
        wanted = recorded[f"image for {seeing.name}"]
    got = asked(seeing, given_to(OUTLINES[seeing.name], len(TOKENS)))
    assert nmse(got[list(ROWS)], wanted) <= 1e-10


@pytest.mark.slow
def test_logits_of_an_image_on_a_gpu_are_llama_cpps(full, tmp_path):
    path = written(tmp_path / "model.gguf", OUTLINES["qwen3vl"])
    with np.load(LOGITS) as recorded, running(path, full, 64) as model:
        got = asked(model, given_to(OUTLINES["qwen3vl"], len(TOKENS)))
        assert nmse(got[list(ROWS)], recorded["image for qwen3vl"]) <= 1e-10


def test_text_around_an_image_stands_where_its_tokens_do(seeing):
    tokens = len(TOKENS)
    given = given_to(OUTLINES[seeing.name], tokens)
    embeddings = given["embeddings"]
    embeddings[[*range(3), *range(9, tokens)]] = np.nan  # an image of six places
    places = np.repeat(np.arange(tokens, dtype=np.int32)[:, None], 3, axis=1)
    with_places = asked(seeing, {"embeddings": embeddings, "rope_positions": places})
    np.testing.assert_allclose(with_places, asked(seeing, {"embeddings": embeddings}), atol=1e-5)
    np.testing.assert_allclose(with_places[:3], asked(seeing, {})[:3], atol=1e-5)
    assert (with_places[3:] != asked(seeing, {})[3:]).any(axis=1).all()


def test_only_distances_along_each_axis_count(seeing):
    given = given_to(OUTLINES[seeing.name], len(TOKENS))
    moved = {**given, "rope_positions": given["rope_positions"] + np.int32([3, 5, 11])}
    turned = {**given, "rope_positions": given["rope_positions"][:, [0, 2, 1]]}
    before = asked(seeing, given)
    assert nmse(asked(seeing, moved), before) <= 1e-9  # angles of larger positions round more
    assert nmse(asked(seeing, turned), before) > 1e-4


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "llama"])
def test_embeddings_of_tokens_are_as_good_as_these(tmp_path, name):
    path = written(tmp_path / "model.gguf", OUTLINES[name])
    with running(path, NumpyExecutor(), 64) as model:
        embeddings = model.model.token_embedding.weight.numpy()[TOKENS]
        embeddings *= np.float32(model.model.embedding_scale)
        embeddings[5:] = np.nan
        tokens = [4, 4, 4, 4, 4, *TOKENS[5:]]
        other = Work(1, TOKENS[:3], range(3))  # which gives nothing
        got = asked(model, {"embeddings": embeddings}, tokens, [other])
        assert nmse(got, asked(model, {})) <= 1e-11  # sums of another batch


def test_embeddings_of_another_width_are_refused(seeing):
    with pytest.raises(ShapeError, match=r"input embeddings: its shape is \(20, 3\), needs"):
        asked(seeing, {"embeddings": np.zeros((len(TOKENS), 3), np.float32)})
    assert seeing.model.width == WIDTH
