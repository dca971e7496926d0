"""Models with states in an engine."""

import wgpu_backend
from tests.models.recurrent_cases import recurrent
from tests.patience import PATIENCE
from wgpu_backend import Engine, Request


def test_sequences_with_states_go_on_together(tmp_path):
    path = recurrent()["mamba2"].write(tmp_path / "model.gguf")
    with (
        wgpu_backend.load(path, device="cpu", num_ctx=64, num_parallel=8) as model,
        Engine(model) as engine,
    ):
        many = [Request.of([5, n], max_tokens=20, ignore_eos=True) for n in range(8)]
        for made in [engine.submit(each) for each in many]:
            made.result(PATIENCE)
        assert engine.status().steps < 30  # 70 where states have no room for all
