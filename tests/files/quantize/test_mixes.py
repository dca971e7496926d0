"""Types of tensors: those that llama.cpp's rules choose."""

import re

import pytest

from tests.files.quantize.layouts import LAYOUTS, infos, recorded
from wgpu_backend.dtypes import F16, F32
from wgpu_backend.errors import OptionError
from wgpu_backend.files.quantize.mixes import MIXES, find_mix, tensor_types


def layers(ranges):
    """Layers that a text such as ``0-3 5`` names."""
    ends = (part.partition("-") for part in ranges.split())
    return [k for first, _, last in ends for k in range(int(first), int(last or first) + 1)]


def others(name, mix, weighted):
    """Tensors of another type than the mix's and F32, by that type."""
    found = {}
    wanted = recorded().get(f"{name} {mix.name} weighted") if weighted else None
    wanted = recorded()[f"{name} {mix.name}"] if wanted is None else wanted
    for dtype, kinds in wanted.items():
        for kind, ranges in kinds.items():
            names = [f"blk.{k}.{kind}" for k in layers(ranges)] or [kind]
            found |= dict.fromkeys(names, dtype)
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_q2_0_is_chosen_where_tq2_0_is(name):
    """llama.cpp treats the two alike, but that blocks of 64 values fit more rows."""
    layout, wide = LAYOUTS[name], {}
    for mix in ("Q2_0", "TQ2_0"):
        types = tensor_types(find_mix(mix), layout.config, infos(layout), weighted=False)
        wide[mix] = {
            info.name: str(types[info.name]).removeprefix("t")
            for info in infos(layout)
            if info.shape[-1] % 256 == 0
        }
    assert wide["Q2_0"] == wide["TQ2_0"]


def test_q2_0_has_the_number_of_llama_cpp():
    assert (find_mix("q2_0").number, str(find_mix("Q2_0").dtype)) == (41, "q2_0")


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_tensor_has_the_type_that_llama_cpp_chooses(name, weighted):
    layout = LAYOUTS[name]
    for mix in MIXES:
        if mix.name == "Q2_0":  # see below
            continue
        types = tensor_types(mix, layout.config, infos(layout), weighted=weighted)
        made = {n: str(t) for n, t in types.items() if t not in (mix.dtype, F32)}
        assert made == others(name, mix, weighted), mix.name


def test_norms_routers_and_convolutions_stay_as_they_are():
    layout = LAYOUTS["mixtral"]
    types = tensor_types(find_mix("Q4_K_M"), layout.config, infos(layout), weighted=False)
    kept = {re.sub(r"\d+", "N", name) for name, dtype in types.items() if dtype == F32}
    assert kept == {
        "blk.N.attn_norm.weight",
        "blk.N.attn_q_norm.weight",
        "blk.N.ffn_gate_inp.weight",
        "blk.N.ssm_convNd.weight",
        "output_norm.weight",
    }


def test_rows_that_no_block_fits_become_f16():
    layout = LAYOUTS["odd"]
    types = tensor_types(find_mix("Q4_K_M"), layout.config, infos(layout), weighted=False)
    assert types["blk.0.ffn_up.weight"] == F16


def test_names_are_those_of_llama_cpp():
    assert find_mix("q4_k") is find_mix("Q4_K_M")
    assert find_mix("Q4_K_M").number == 15
    with pytest.raises(OptionError, match="type 'Q9': unknown, needs one of F32, F16, BF16, Q4_0"):
        find_mix("Q9")
