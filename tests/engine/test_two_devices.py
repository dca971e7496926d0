"""Models with layers on two devices: the text of one device, for one request and for several."""

import pytest

import wgpu_backend
from tests.builders import Dims, tiny_model
from tests.patience import PATIENCE
from wgpu_backend.device.adapters import Devices
from wgpu_backend.ml.placed_executor import PlacedExecutor
from wgpu_backend.ml.placement import Placement
from wgpu_backend.ops.sampling.host import SamplingOptions

GREEDY = SamplingOptions(temperature=0.0)
SEEDED = SamplingOptions(temperature=0.8, seed=5, repeat_penalty=1.3)
PROMPTS = ([1, 2, 3, 4], [9, 8, 7], list(range(20, 60)))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    dims = Dims(layers=3)
    return tiny_model(tmp_path_factory.mktemp("two") / "tiny.gguf", dims=dims, tied=True)


def texts(path, **where):
    """Tokens of prompts one by one, then of all at once."""
    with wgpu_backend.load(path, num_ctx=128, num_parallel=4, exact=True, **where) as model:
        alone = [
            list(model.tokens(prompt, options, num_predict=12))
            for prompt in PROMPTS
            for options in (GREEDY, SEEDED)
        ]
        with wgpu_backend.Engine(model) as engine:
            requests = [
                engine.submit(wgpu_backend.Request(prompt, GREEDY, max_tokens=12))
                for prompt in PROMPTS
            ]
            together = [request.result(PATIENCE).choices[0].tokens for request in requests]
        placed = isinstance(model.backend.executor, PlacedExecutor)
    return placed, alone, [list(each) for each in together]


@pytest.fixture(scope="module")
def wanted(path):
    placed, *found = texts(path, device="cpu")
    assert not placed
    return found


@pytest.mark.parametrize("layers", [(0, 0, 1), (0, 1, 1), (1, 1, 1)])
def test_two_devices_write_the_text_of_one(path, wanted, layers):
    """The last of these has only the embedding table on the first device."""
    placed, *found = texts(path, placement=Placement(("cpu", "cpu#1"), layers, 0, 1))
    assert placed
    assert found == wanted


@pytest.mark.gpu
@pytest.mark.parametrize("first", ["cpu", "second"])
def test_so_do_an_adapter_and_the_host(path, wanted, first):
    name = Devices()[0].id
    other = "cpu" if first == "cpu" else f"{name}#1"
    placed, *found = texts(path, placement=Placement((other, name), (0, 1, 1), 0, 1))
    assert placed
    assert found == wanted
