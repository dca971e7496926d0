"""Towers of checkpoints make the rows, and the texts around them, that transformers makes.

Recorded by `tests/data/make_towers.py` with transformers 5.24 and Pillow 13.
"""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import PIL
import pytest

from tests.data.tower_weights import make_weights, picture
from tests.files.huggingface.folders import safetensors
from tests.models.towers import rows
from wgpu_backend.files.huggingface.tower import open_tower_folder
from wgpu_backend.ml.backend import Backend, BackendParams, make_executor
from wgpu_backend.nn.tower import Rows, projector_kinds, tower_class
from wgpu_backend.testing import nmse

DEVICES = ["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)]
# Other versions of Pillow round a few values of resized pictures otherwise.
LIMIT = 1e-10 if PIL.__version__.startswith("13.") else 1e-3


@cache
def recorded():
    with np.load(Path(__file__).parents[1] / "data/towers.npz") as file:
        arrays = dict(file)
    return json.loads(arrays.pop("facts").tobytes()), arrays


def open_recorded(folder, name, device):
    facts = recorded()[0][name]
    (folder / "config.json").write_text(json.dumps(facts["config"]))
    (folder / "preprocessor_config.json").write_text(json.dumps(facts["processor"]))
    weights = make_weights({k: tuple(v) for k, v in facts["shapes"].items()})
    (folder / "model.safetensors").write_bytes(safetensors(weights))
    file = open_tower_folder(folder)
    assert file is not None
    backend = Backend(file, make_executor(device, BackendParams(exact=True)))
    backend.load()
    [(modality, kind)] = projector_kinds(backend.config).items()
    return tower_class(backend.config, modality, kind)(backend), backend


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(recorded()[1]))
def test_rows_are_those_of_transformers(name, device, tmp_path):
    facts, arrays = recorded()
    tower, backend = open_recorded(tmp_path, name, device)
    with backend:
        media = tower.prepare(picture(41, 70))
        found = rows(tower, media)
    assert found.shape == (media.rows, tower.cols) == arrays[name].shape
    assert nmse(found, arrays[name]) < LIMIT
    text = facts[name]["text"]
    if text is not None:
        token = re.search(r"<image>|<\|patch\|>|\[IMG\]", text)[0]
        parts = (token * x.count if isinstance(x, Rows) else x for x in media.layout)
        assert "".join(parts) == text
