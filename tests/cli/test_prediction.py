"""Predictions are found for the cards and models they were worked out for, and for no others."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from wgpu_backend.cli import prediction
from wgpu_backend.cli.prediction import Prediction, find_prediction
from wgpu_backend.files.gguf.config import Config

DATA = {
    "positions": 256,
    "cards": ["RTX 4090", "H200", "Arc B580"],
    "models": {"8b": {"block_count": 32, "embedding_length": 4096}},
    "columns": ["model", "format", "card", "test", "tokens_per_second", "bound"],
    "predictions": [
        ["8b", "q4_k_m", "H200", "tg", 150.0, "instructions"],
        ["8b", "q4_k_m", "H200", "pp128", 2000.0, "gaps"],
        ["8b", "q4_k_m", "RTX 4090", "tg", 90.0, "bytes"],
        ["8b", "q4_k_m", "Arc B580", "tg", 40.0, "bytes"],
    ],
}


@pytest.fixture(autouse=True)
def data(monkeypatch):
    monkeypatch.setattr(prediction, "_data", lambda: DATA)


def config(**other):
    sizes = {"block_count": 32, "embedding_length": 4096} | other
    keys = {f"llama.{name}": value for name, value in sizes.items()}
    return Config("model.gguf", {"general.architecture": "llama", **keys})


@pytest.mark.parametrize(
    ("device", "rate"),
    [
        ("NVIDIA H200", 150.0),
        ("NVIDIA GeForce RTX 4090", 90.0),
        ("Intel(R) Arc(TM) B580 Graphics (BMG G21)", 40.0),
    ],
)
@pytest.mark.parametrize("test", ["tg1", "tg256"])
def test_a_card_is_known_by_its_adapters_name(device, rate, test):
    found = find_prediction(config(), "Q4_K", device, test)
    assert isinstance(found, Prediction)
    assert found.tokens_per_second == rate


def test_the_summary_says_that_it_is_not_measured_and_what_bounds_it():
    summary = find_prediction(config(), "Q4_K", "NVIDIA H200", "pp128").summary
    assert summary == "2000 tokens/s predicted, not measured; bound by gaps between dispatches"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "NVIDIA GeForce RTX 4090 D"}, "RTX 4090 D is not among RTX 4090, H200"),
        ({"device": "NVIDIA GeForce RTX 4090 Laptop GPU"}, "Laptop GPU is not among"),
        ({"device": "llvmpipe"}, "llvmpipe is not among"),
        ({"dtype": "Q2_K"}, "no prediction for Q2_K, only for q4_k_m"),
        ({"config": config(block_count=31)}, "the model has other sizes than 8b"),
        ({"test": "tg257"}, "no prediction for this length, only for tg, pp128"),
        ({"test": "pp64"}, "no prediction for this length"),
    ],
)
def test_it_says_what_it_knows_nothing_of(change, message):
    wanted = {"config": config(), "dtype": "Q4_K", "device": "NVIDIA H200", "test": "tg32"}
    found = find_prediction(**(wanted | change))
    assert isinstance(found, str)
    assert message in found


def test_the_package_has_data_for_all_cards_models_and_formats(monkeypatch):
    monkeypatch.undo()
    data = prediction._data()
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["predictions"]]
    assert {row["card"] for row in rows} == set(data["cards"]) >= {"H200", "M3 Max"}
    assert {row["model"] for row in rows} == set(data["models"]) == {"8b", "1b", "0.5b"}
    assert len(rows) == 5 * 3 * 5 * 3
    assert all(row["tokens_per_second"] > 0 for row in rows)


def test_bench_shows_a_prediction_or_why_there_is_none(cli: Cli, tiny: Path):
    words = ("bench", str(tiny), "-p", "0", "-n", "2", "-r", "1", "--compare-prediction")
    done = cli(*words, "--device", "cpu")
    assert "tg2: no prediction: " in done.err
    assert "is not among RTX 4090" in done.err
    (result,) = json.loads(cli(*words, "--json", "--device", "cpu").out)
    assert result["predicted_tokens_per_second"] is None


def test_bench_shows_a_prediction_beside_what_it_measured(cli: Cli, tiny: Path, monkeypatch):
    monkeypatch.setattr(prediction, "find_prediction", lambda *_: Prediction(1e-6, "bytes"))
    words = ("bench", str(tiny), "-p", "0", "-n", "2", "-r", "1", "--compare-prediction")
    done = cli(*words, "--device", "cpu")
    assert "1e-06 tokens/s predicted" in done.err
    assert "1e-06" in done.out
    assert "predicted" in done.out
