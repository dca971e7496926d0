"""The gate of quality: its figures, and what is committed of them."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("wgpu_backend.kernels.gpu", reason="benchmarks.quality tries its kernels")

from benchmarks import quality
from benchmarks.quality import DEFAULTS, Figures, Scores, Way, opened, scored

RESULTS = Path(quality.__file__).parent / "results"


def test_perplexity_is_that_of_the_tokens_that_follow():
    probabilities = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.2, 0.2, 0.6]])
    found = scored([[0, 1, 2]], lambda _: np.log(probabilities).astype("f4") + 7)
    np.testing.assert_allclose(np.exp(found.gains), [0.25, 0.125], rtol=1e-6)
    assert found.perplexity == pytest.approx((0.25 * 0.125) ** -0.5)
    assert list(found.best) == [0, 1, 2]


@pytest.mark.parametrize(
    ("rise", "flips", "passes"), [(0.4, 19, True), (0.6, 0, False), (-1.0, 21, False)]
)
def test_a_default_may_cost_so_much(rise, flips, passes):
    rows = np.ones((2, 3), "f4")
    exact = Scores(np.zeros(1000, int), np.full(998, -2.0), rows)
    best = np.arange(1000) < flips
    other = Scores(best.astype(int), exact.gains - np.log1p(rise / 100), rows)
    found = Figures.of("model", "way", other, exact)
    assert found.rise == pytest.approx(rise)
    assert found.agreement == pytest.approx(100 - flips / 10)
    assert found.passes is passes


def test_ways_of_the_bundled_model():
    pytest.importorskip("wgpu_backend.kernels.rasteriser", reason="whose products round x")
    story = Path(quality.__file__).parents[1] / "wgpu_backend" / "bundled" / "story.gguf"
    window = [int(t) for t in np.random.default_rng(1).integers(0, 500, 24)]
    found = {}
    for name, way in {"exact": Way(), **quality.WAYS}.items():
        with opened(story, way) as model:
            found[name] = scored([window], model.logits)
    errors = {n: Figures.of("story", n, s, found["exact"]).error for n, s in found.items()}
    assert errors["split"] < 1e-6 < errors["coarse"]
    assert 0 < errors["f16"] < 1e-5


def test_committed_figures_let_every_default_pass():
    kept = json.loads((RESULTS / "quality.json").read_text("utf-8"))
    figures = [Figures(**f) for f in kept["figures"]]
    assert all(f.passes for f in figures if f.way in DEFAULTS)
    assert quality.markdown(figures, kept["text"]) == (RESULTS / "quality.md").read_text("utf-8")


def test_figures_of_another_text_are_not_kept(tmp_path):
    path = tmp_path / "quality.json"
    figures = [Figures("model", "exact", 512, 3.0, 0.0, 100.0, 0.0)]
    quality.write(path, figures, "a text")
    assert quality.read(path, "a text") == figures
    assert quality.read(path, "another text") == []
