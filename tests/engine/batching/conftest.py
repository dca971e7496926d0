"""Tiny models for engines; NumPy computes a step of theirs in a millisecond."""

import pytest

import wgpu_backend
from tests.builders import tiny_model


@pytest.fixture(scope="session")
def path(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("serving") / "model.gguf")


@pytest.fixture(scope="module")
def model(path):
    with wgpu_backend.load(path, device="cpu", num_parallel=4) as model:
        yield model


@pytest.fixture
def engine(model):
    with wgpu_backend.Engine(model) as engine:
        yield engine
