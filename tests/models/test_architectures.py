"""Logits of every architecture against llama.cpp's, or states where it has none.

`tests/data/make_zoo.py` recorded them.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.models.llama_cpp import follow_llama_cpp
from tests.models.outlines import LOGITS, ROWS, TOKENS, outlines, written
from tests.models.running import running
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.model import architectures
from wgpu_backend.testing import nmse

OUTLINES = outlines()
NAMES = [name for name, found in OUTLINES.items() if found["architecture"] in architectures()]
# Only the order of sums differs; where there is a GELU, llama.cpp looks it up in a table of f16,
# and takes the form with a tangent for the one with an error function.
# Where scores are not scaled, the softmax magnifies that: with such a table in NumPy's GELU, too,
# errors are a seventh to a hundredth of what they are.
LIMIT, OF_TABLES, MAGNIFIED = 1e-10, 1e-6, 1e-5
TABLES = (
    "bert",
    "bloom",
    "codeshell",
    "falcon",
    "gemma",
    "gpt",
    "jina",
    "mpt",
    "phi2",
    "roberta",
    "starcoder",
)
TABLES += ("nomic-bert-moe", "spark", "t5")


def limit(name: str) -> float:
    if name.startswith(("gemma3n", "gemma4")):
        return MAGNIFIED
    return OF_TABLES if name.startswith(TABLES) else LIMIT


@pytest.fixture(autouse=True)
def as_llama_cpp(monkeypatch):
    follow_llama_cpp(monkeypatch)


@pytest.fixture
def model(tmp_path, name):
    return written(tmp_path / f"{name}.gguf", OUTLINES[name])


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_llama_cpps(model, name):
    with np.load(LOGITS) as recorded:
        wanted = recorded[name]
    with running(model, NumpyExecutor(), 64) as made:
        for step in (256, 7) if made.model.causal else (256,):
            got = made.anew(TOKENS, step)[list(ROWS)]
            assert nmse(got, wanted) <= limit(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_logits_on_a_gpu_are_llama_cpps(full, model, name):
    with np.load(LOGITS) as recorded:
        wanted = recorded[name]
    with running(model, full, 64) as made:
        for step in (256, 1) if made.model.causal else (256,):
            got = made.anew(TOKENS, step)[list(ROWS)]
            assert nmse(got, wanted) <= limit(name)


def test_documented_gaps_are_gaps():
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    listed = text.partition("These are refused")[2].partition("\n\n")[0]
    names = set(re.findall("`([^`]+)`", listed))
    assert len(names) > 30
    assert not names & {*architectures()}
