"""Where llama-cpp-python's arguments place layers."""

import pytest

from wgpu_backend.engine.placing import place_model
from wgpu_backend.errors import OptionError
from wgpu_backend.llama import Llama
from wgpu_backend.llama.arguments import make_placement
from wgpu_backend.ml.placement import PlacementOptions


def test_defaults_are_those_of_loading() -> None:
    assert make_placement() is None
    assert make_placement(-1, 1, 0, [0.0] * 16) is None


def test_numbers_of_layers_and_shares() -> None:
    assert make_placement(20) == PlacementOptions(20, capped=True)
    # llama.cpp's arrays have a share for each of 16 devices.
    found = make_placement(-1, 1, 0, [3, 1, *[0] * 14])
    assert found == PlacementOptions(tensor_split=(3.0, 1.0, *[0.0] * 14), capped=True)
    # No share for the second of two devices.
    assert make_placement(tensor_split=[1, 0]).tensor_split == (1.0, 0.0)
    assert make_placement(tensor_split=[]) is make_placement(tensor_split=[0, 0]) is None
    assert make_placement("all") == make_placement(-2) == PlacementOptions("all", capped=True)
    assert make_placement("auto") is None
    assert make_placement(-1, 0, 2) == PlacementOptions(main_gpu=2, split_mode="none", capped=True)


def test_what_stays_in_the_host_s_memory() -> None:
    far = PlacementOptions(kv_offload=False, capped=True)
    assert make_placement(offload_kqv=False) == make_placement(offload_kqv=0) == far
    assert make_placement(3, op_offload=False) == PlacementOptions(3, op_offload=False, capped=True)
    # The default of llama.cpp, which needs nothing of a device.
    assert make_placement(op_offload=True) is make_placement(offload_kqv=True) is None
    assert make_placement(3, op_offload=True) == PlacementOptions(3, capped=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split_mode": 2}, r"split_mode: 2, needs one of 0 \(none\), 1 \(layer\)"),
        ({"tensor_split": [-1]}, "-1.0"),
        ({"n_gpu_layers": "all the rest"}, "n_gpu_layers"),
        ({"n_gpu_layers": True}, r"n_gpu_layers: True \(bool\), needs a number, 'all' or 'auto'"),
        ({"tensor_split": [True, 0]}, r"tensor_split: True \(bool\), needs numbers from 0"),
        ({"tensor_split": [float("nan")]}, "tensor_split: nan, needs finite numbers"),
        ({"main_gpu": 1.5}, "main_gpu: 1.5, needs a whole number"),
        ({"split_mode": True}, "split_mode: True, needs a whole number"),
        ({"offload_kqv": "no"}, r"offload_kqv: 'no' \(str\), needs True or False"),
        ({"op_offload": float("nan")}, r"op_offload: nan \(float\), needs True or False"),
    ],
)
def test_values_that_cannot_be(arguments, message) -> None:
    with pytest.raises(OptionError, match=message):
        make_placement(**arguments)


def test_a_model_on_the_cpu_takes_any_number() -> None:
    from wgpu_backend.engine.loading import bundled

    with Llama(bundled(), device="cpu", n_gpu_layers=99, n_ctx=32) as llama:
        assert llama.model.n_embd() > 0


def test_the_plan_leaves_room_for_the_context(monkeypatch) -> None:
    from wgpu_backend.engine.loading import bundled
    from wgpu_backend.llama import llama as module

    positions = []

    def place(path, choice, num_ctx, kv_dtype):
        positions.append(num_ctx)
        return place_model(path, choice, num_ctx, kv_dtype=kv_dtype)

    monkeypatch.setattr(module, "place_model", place)
    for n_ctx, wanted in ((32, 32), (0, 512)):
        with Llama(bundled(), devices=["cpu"], n_ctx=n_ctx) as llama:
            assert llama.n_ctx() == wanted
    assert positions == [32, 512]
