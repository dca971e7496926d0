"""A context that grows until memory is short: the error lists its use, nothing is lost."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.builders import tiny_model
from wgpu_backend.dtypes import F32
from wgpu_backend.engine.runner import Head, Runner
from wgpu_backend.errors import DeviceError, OutOfMemory
from wgpu_backend.ml.backend import BackendParams, new_backend
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.nn.model import model_class

pytestmark = pytest.mark.gpu

SHORT, LONG = [1, 7, 3, 99, 200], [*range(120)]


class Talk:
    """A model with a cache of its own, on a device of its own."""

    def __init__(self, backend, executor: WgpuExecutor) -> None:
        self.device = executor.device
        model = model_class(backend.config)(backend)
        self.cache = model.make_cache(executor, 4, 256, F32)
        self.runner = Runner(model, self.cache)
        self.head = Head("logits", lambda _, hidden: [model.logits(hidden)])

    def logits(self, tokens):
        self.cache.remove(0)
        return self.runner.prefill(0, tokens, self.head, {})[0]


@pytest.fixture
def talk(tmp_path) -> Iterator[Talk]:
    path = tiny_model(tmp_path / "tiny.gguf", dtype="q8_0")
    try:
        backend = new_backend(path, BackendParams(self_test=False))
    except DeviceError as error:
        pytest.skip(f"needs an adapter: {error}")
    assert isinstance(backend.executor, WgpuExecutor)
    with backend:
        backend.load()
        talk = Talk(backend, backend.executor)
        yield talk
        talk.runner.close()
        talk.cache.close()


@pytest.mark.parametrize("purpose", ["activations", "inputs", "params", "readback"])
def test_a_step_without_memory_leaves_the_model_as_it_was(talk, monkeypatch, purpose):
    expected = talk.logits(SHORT)
    before = talk.device.memory_report()
    real = talk.device._pool.acquire

    def short(nbytes, wanted, label=""):
        if wanted == purpose:
            raise OutOfMemory(f"buffer {label}: {nbytes} bytes", str(before))
        return real(nbytes, wanted, label)

    with monkeypatch.context() as patch:
        patch.setattr(talk.device._pool, "acquire", short)
        with pytest.raises(OutOfMemory) as caught:
            talk.logits(LONG)
        assert "weights" in caught.value.report
        assert talk.cache.length(0) == 0
        np.testing.assert_array_equal(talk.logits(SHORT), expected)

    assert np.isfinite(talk.logits(LONG)).all()
    np.testing.assert_array_equal(talk.logits(SHORT), expected)
