"""Logits with fusion rules on, off one by one, and all off; and with activations in eight bits."""

import dataclasses
import functools

import numpy as np
import pytest

import wgpu_backend
from tests.models.cases import ARCHITECTURES, recorded, types
from tests.models.running import running
from tests.models.test_logits import LIMITS, assert_recorded
from tests.shares import rare
from wgpu_backend.dtypes import F16, F32
from wgpu_backend.engine.runner import Head, Work
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT
from wgpu_backend.ops.op import fusions
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.testing import nmse

# Mixtures of experts have a test of their own for these.
EXPERTS = ("route", "linear_by_expert")
NAMES = sorted({rule.name for rules in fusions(exact=False).values() for rule in rules})
RULES = [name for name in NAMES if not name.startswith(EXPERTS)]
MODELS = [("llama", "q4_k"), ("qwen2", "q8_0"), ("qwen3", "q4_0")]
# Activations in eight bits cost 2e-5 to 3e-4 here; llama.cpp's own CPU kernels 2e-4 to 9e-4.
ROUNDED = 1e-3
DIVERGENCE = 1e-2  # nats, of the distributions of next tokens
AGREEMENT = 0.998


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def divergence(got: np.ndarray, want: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence of the distributions, in nats."""
    p, q = softmax(want.astype(np.float64)), softmax(got.astype(np.float64))
    return float(np.mean(np.sum(p * np.log(p / q), axis=-1)))


def logits(tmp_path, executor, architecture, dtype, cache=F32, steps=(256, 7, 1)):
    case = types(architecture)[dtype]
    path = case.write(tmp_path / "model.gguf")
    with running(path, executor, case.length, cache) as model:
        return [model.anew(case.tokens, step)[list(case.rows)] for step in steps]


@pytest.fixture(scope="module")
def acting(full, tmp_path_factory):
    """Skips where a rule replaces nothing in a model, which is the same without it."""

    @functools.cache
    def find(architecture, dtype, exact):
        found: set[str] = set()
        with pytest.MonkeyPatch.context() as patch:
            rules = fusions(RULES, exact=exact)
            noted = {op: [noting(rule, found) for rule in those] for op, those in rules.items()}
            patch.setattr(full, "rules", noted)
            folder = tmp_path_factory.mktemp("acting")
            for cache in LIMITS:
                logits(folder, full, architecture, dtype, cache)
        return found

    def check(off, architecture, dtype, *, exact):
        if off not in {"none", "all", *find(architecture, dtype, exact)}:
            pytest.skip(f"{off} replaces nothing in this model on this device")

    return check


def noting(rule, found):
    """The same rule, whose name is in `found` once it replaced something."""

    def replace(node, graph):
        if (made := rule.replace(node, graph)) is not None:
            found.add(rule.name)
        return made

    return dataclasses.replace(rule, replace=replace)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "dtype"), MODELS)
@pytest.mark.parametrize("off", ["none", "all", *RULES])
def test_exact_logits_stay_exact(full, acting, tmp_path, monkeypatch, off, architecture, dtype):
    acting(off, architecture, dtype, exact=True)
    left = [name for name in RULES if off not in (name, "all")]
    monkeypatch.setattr(full, "rules", fusions(left, exact=True))
    for cache, limit in LIMITS.items():
        for got in logits(tmp_path, full, architecture, dtype, cache):
            assert_recorded(got, architecture, dtype, limit)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("off", ["none", "norm_weighted", "linear_add_weighted"])
def test_norms_in_products_of_floats_are_exact(full, tmp_path, monkeypatch, off, architecture):
    left = [name for name in RULES if name != off]
    monkeypatch.setattr(full, "rules", fusions(left, exact=True))
    for got in logits(tmp_path, full, architecture, "f16"):
        assert_recorded(got, architecture, "f16", LIMITS[F32])


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "dtype", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "f16"]
)
def test_rounded_activations_move_logits_little(full, tmp_path, monkeypatch, architecture, dtype):
    monkeypatch.setattr(full, "rules", fusions(exact=False))
    want = recorded(architecture, dtype)
    for got in logits(tmp_path, full, architecture, dtype, F16):
        assert nmse(got, want) <= ROUNDED
        assert divergence(got, want) <= DIVERGENCE


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "dtype"), MODELS)
@pytest.mark.parametrize("off", ["all", *RULES])
def test_rounding_without_one_rule(full, acting, tmp_path, monkeypatch, off, architecture, dtype):
    acting(off, architecture, dtype, exact=False)
    left = [name for name in RULES if off not in (name, "all")]
    monkeypatch.setattr(full, "rules", fusions(left, exact=False))
    for got in logits(tmp_path, full, architecture, dtype, steps=(7, 1)):
        assert nmse(got, recorded(architecture, dtype)) <= ROUNDED


@pytest.mark.slow
def test_rounding_on_the_default_limits(executors, tmp_path, monkeypatch):
    baseline: WgpuExecutor = executors("baseline")
    monkeypatch.setattr(baseline, "rules", fusions(exact=False))
    for got in logits(tmp_path, baseline, "llama", "q4_k", steps=(7, 1)):
        assert nmse(got, recorded("llama", "q4_k")) <= ROUNDED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [MODELS[1], *(pytest.param(*model, marks=rare) for model in MODELS[2:])],
)
def test_rounding_on_hardware_where_it_pays(executors, tmp_path, monkeypatch, architecture, dtype):
    wide: WgpuExecutor = executors("wide")
    wide = wide.as_if(dataclasses.replace(wide.capabilities, rounded=EVERY_PRODUCT))
    monkeypatch.setattr(wide, "rules", fusions(exact=False))
    for got in logits(tmp_path, wide, architecture, dtype, F16, steps=(256, 1)):
        assert 1e-6 <= nmse(got, recorded(architecture, dtype)) <= ROUNDED


HEROES = ["a fox named Pip", "a bear", "a girl", "an old owl", "a rabbit", "a little dragon"]
THINGS = ["a lantern", "a kite", "a boat", "a drum", "a star", "a cake"]
PAIRS = zip(HEROES, THINGS, strict=True)
PROMPTS = [f"Tell me a story about {who} and {what}." for who, what in PAIRS]


def told(model) -> list[list[int]]:
    """Tokens of one story for each prompt, the same ones in every run."""
    texts = [
        model.generate(prompt, num_predict=250, options=SamplingOptions(seed=seed))
        for seed, prompt in enumerate(PROMPTS)
    ]
    return [model.tokenizer.encode(text) for text in texts]


def choices(model, texts: list[list[int]]) -> np.ndarray:
    """Likeliest next token after each token of each text."""
    head = Head("all logits", lambda _, hidden: [model.model.logits(hidden)])
    rows = []
    for tokens in texts:
        model.cache.remove(0)
        for start in range(0, len(tokens), 64):
            part = tokens[start : start + 64]
            result = model.runner.run([Work(0, part, range(len(part)))], head, {})
            rows.append(result.wait()[0][: len(part)].argmax(axis=-1))
    return np.concatenate(rows)


@pytest.mark.slow
@pytest.mark.gpu
def test_the_bundled_model_says_the_same():
    # With two parts of eight bits 1 token of 2,000 differs, with one 3 of 1,000.
    with wgpu_backend.load(exact=True, num_ctx=512) as model:
        stories = told(model)
        exact = choices(model, stories)
    with wgpu_backend.load(num_ctx=512) as model:
        rounded = choices(model, stories)
    assert len(exact) > 800
    assert np.mean(exact == rounded) >= AGREEMENT, np.flatnonzero(exact != rounded)
