"""Perplexity: llama.cpp's definition, on llama.cpp's figure."""

import math

import numpy as np
import pytest

import wgpu_backend as wb
from wgpu_backend.engine.perplexity import perplexities
from wgpu_backend.errors import ContextFull, OptionError

TEXT = (
    """\
Once upon a time there was a fox named Pip. Pip had a red lantern. One day Pip lost the lantern in \
the woods. The fox was sad and asked the bear for help. They looked under the bridge and found it. \
"""
    * 12
)
# Of llama.cpp's logits (exact arithmetic, cache in f32), by the formula of its perplexity tool.
LLAMA_CPP = 609.246208657223, 330.5805202351661


@pytest.fixture(scope="module")
def story():
    with wb.load(device="cpu", kv_dtype="f32", num_ctx=64) as model:
        yield model


@pytest.mark.slow
def test_it_is_that_of_llama_cpp(story):
    steps = list(perplexities(story, TEXT, n_ctx=64, chunks=4))
    assert [(step.chunks, step.total, step.tokens) for step in steps] == [
        (k, 4, 31 * k) for k in (1, 2, 3, 4)
    ]
    assert (steps[-1].value, steps[-1].error) == pytest.approx(LLAMA_CPP, rel=3e-6)


def test_a_chunk_begins_with_the_token_that_begins_texts(story):
    tokens = story.tokenizer.encode(TEXT)
    chunk = [story.tokenizer.bos_id, *tokens[9:16]]
    logits = story.logits(chunk).astype("f8")
    likelihoods = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    first, second = list(perplexities(story, TEXT, n_ctx=8, chunks=2))
    scored = 6 * math.log(second.value) - 3 * math.log(first.value)
    assert scored == pytest.approx(sum(-likelihoods[k, chunk[k + 1]] for k in (4, 5, 6)))


def test_what_makes_no_chunks_is_refused(story):
    with pytest.raises(OptionError, match=r"has \d+ tokens, two chunks of 64 need 128"):
        list(perplexities(story, "Once upon a time", n_ctx=64))
    with pytest.raises(ContextFull, match="n_ctx: 128 tokens a chunk, the context holds 64"):
        list(perplexities(story, TEXT, n_ctx=128))
    with pytest.raises(OptionError, match="n_ctx: 2, needs at least 4"):
        list(perplexities(story, TEXT, n_ctx=2))
    with pytest.raises(OptionError, match="chunks: 0, needs at least 1"):
        list(perplexities(story, TEXT, n_ctx=8, chunks=0))
