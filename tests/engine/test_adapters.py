"""LoRA adapters and control vectors: llama.cpp's logits, swapping, and files that do not fit.

`tests/data/make_adapters.py` recorded the logits.
"""

import threading

import gguf
import numpy as np
import pytest

import wgpu_backend as wb
from tests.models.adapters import (
    CASES,
    FIRST,
    SECOND,
    STRENGTH,
    a_control_vector,
    a_lora,
    files_of,
    merged,
)
from tests.models.outlines import LOGITS, ROWS, TOKENS, outlines, written
from tests.patience import PATIENCE
from wgpu_backend.testing import nmse

# As in `tests.models.test_architectures`: llama.cpp's table for GELU bounds two of them.
LIMIT, OF_TABLES = 1e-10, 1e-6
TABLES = ("gemma3", "bert")
OUTLINES = outlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def base(folder):
    return written(folder / "llama-base.gguf", OUTLINES["llama"])


@pytest.fixture(scope="module")
def files(folder, base):
    return files_of("llama-base", base, folder)


@pytest.fixture
def model(base):
    with wb.load(base, device="cpu", kv_dtype="f32") as model:
        yield model


def rows(model):
    made = model.logits(TOKENS) if model.model.has_logits else model.states(TOKENS)
    return made[list(ROWS)]


def held(model):
    """Bytes of weights and states."""
    return dict(model.backend.executor._nbytes)


def recorded(name):
    with np.load(LOGITS.with_name("adapters.npz")) as arrays:
        return arrays[name]


def limit(case):
    return OF_TABLES if case in TABLES else LIMIT


def assert_llama_cpps(model, case, first, second, control):
    model.set_adapters([(first, FIRST), (second, SECOND)])
    assert nmse(rows(model), recorded(case)) <= limit(case)
    if f"{case} steered" in np.load(LOGITS.with_name("adapters.npz")):
        model.set_adapters()
        model.set_control_vectors([(control, STRENGTH)])
        assert nmse(rows(model), recorded(f"{case} steered")) <= limit(case)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_llama_cpps(folder, case):
    base = written(folder / f"{case}.gguf", OUTLINES[case])
    with wb.load(base, device="cpu", kv_dtype="f32") as model:
        plain = rows(model)
        assert_llama_cpps(model, case, *files_of(case, base, folder))
        model.set_adapters()
        model.set_control_vectors()
        assert np.array_equal(rows(model), plain)


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("case", ["llama", "mixtral"])
def test_logits_on_a_gpu_are_llama_cpps(full, folder, case):
    base = written(folder / f"{case}.gguf", OUTLINES[case])
    with wb.load(base, device=full.info, kv_dtype="f32", exact=True) as model:
        assert_llama_cpps(model, case, *files_of(case, base, folder))


@pytest.mark.parametrize(
    "name",
    ["phi3", "mistral4", "qwen2moe", "gemma4-moe", pytest.param("gemma4", marks=pytest.mark.slow)],
)
def test_an_adapter_does_what_changed_weights_do(folder, monkeypatch, name):
    base = written(folder / f"{name}.gguf", OUTLINES[name])
    lora = a_lora(folder / f"{name}-lora.gguf", base, rank=3, unchanged=())
    weights = merged(base, lora, 0.5)
    monkeypatch.setattr("tests.models.outlines.drawn", lambda name, shape, tied: weights[name])
    monkeypatch.setattr("tests.models.outlines.UNSCALED", ())
    changed = written(folder / f"{name}-changed.gguf", OUTLINES[name])
    with wb.load(changed, device="cpu", kv_dtype="f32") as model:
        wanted = rows(model)
    with wb.load(base, device="cpu", kv_dtype="f32") as model:
        plain = rows(model)
        model.set_adapters([(lora, 0.5)])
        assert nmse(rows(model), wanted) <= 1e-10
        assert nmse(plain, wanted) > 1e-2


def test_heads_may_share_a_matrix_of_their_change(folder, rng):
    base = written(folder / "mistral4.gguf", OUTLINES["mistral4"])
    name = "blk.0.attn_v_b.weight"
    with wb.open_gguf(base) as file:
        heads, rows_of_head, rank = file.tensors[name].shape
    a = rng.standard_normal((1, 2, rank), "f4")
    b = rng.standard_normal((heads, rows_of_head, 2), "f4")
    pair = {f"{name}.lora_a": a, f"{name}.lora_b": b}
    shared = a_lora(folder / "shared.gguf", base, only=("none",), tensors=pair)
    each = pair | {f"{name}.lora_a": np.repeat(a, heads, 0)}
    repeated = a_lora(folder / "repeated.gguf", base, only=("none",), tensors=each)
    with wb.load(base, device="cpu", kv_dtype="f32") as model:
        model.set_adapters([repeated])
        wanted = rows(model)
        model.set_adapters([shared])
        np.testing.assert_allclose(rows(model), wanted, atol=1e-4)
        model.set_adapters()
        assert nmse(rows(model), wanted) > 1e-6


def test_load_takes_adapters_and_control_vectors(base, files):
    first, second, control = files
    changes = {"adapters": [first, (second, 0.5)], "control_vectors": control}
    with wb.load(base, device="cpu", control_layers=(1, 1), **changes) as model:
        at_once = rows(model)
        assert list(model.adapters.loras) == [(first, 1.0), (second, 0.5)]
        assert list(model.adapters.control_vectors) == [(control, 1.0)]
    with wb.load(base, device="cpu") as model:
        model.set_adapters([(second, 0.25), first, (second, 0.25)])
        model.set_control_vectors(control, (1, 1))
        assert np.allclose(rows(model), at_once, atol=1e-4)


def test_halves_and_blocks_are_taken_as_floats_are(folder, base, model):
    kept = {}
    for dtype in (np.float32, np.float16):
        path = a_lora(folder / f"{dtype.__name__}.gguf", base, only=("attn",), rank=32, dtype=dtype)
        model.set_adapters([path])
        kept[dtype] = rows(model)
    assert 0 < nmse(kept[np.float16], kept[np.float32]) < 1e-6


def test_another_scale_needs_no_graph_and_another_set_keeps_those_there_are(model, files):
    first, second, control = files
    model.set_adapters([first])
    rows(model)
    recorded = model.runner.clock.recorded
    model.set_adapters([(first, 0.1)])
    some = rows(model)
    assert model.runner.clock.recorded == recorded
    model.set_adapters([second])
    rows(model)
    model.set_control_vectors([(control, 2.0)])
    rows(model)
    assert model.runner.clock.recorded == recorded + 2
    model.set_control_vectors()
    model.set_adapters([(first, 0.1)])
    assert np.array_equal(rows(model), some)
    assert model.runner.clock.recorded == recorded + 2


def test_a_scale_of_nothing_is_no_adapter(model, files):
    plain = rows(model)
    model.set_adapters([(files[0], 0), (files[1], 1), (files[1], -1)])
    model.set_control_vectors([(files[2], 0)])
    assert model.model.variant == ()
    assert np.array_equal(rows(model), plain)


def test_unloading_releases_what_is_not_set(model, files):
    first, second, _ = files
    rows(model)  # what the first pass allocates for good
    before = held(model)
    model.set_adapters([first])
    one = rows(model)
    with_one = held(model)
    model.set_adapters([first, second])
    model.set_adapters([first])
    assert held(model) != with_one
    model.unload_adapters()
    assert held(model) == with_one
    assert np.array_equal(rows(model), one)
    model.set_adapters()
    model.unload_adapters()
    assert held(model) == before


def test_a_file_that_was_written_anew_is_read_anew(folder, base, model):
    path = a_lora(folder / "trained.gguf", base, seed=8)
    model.set_adapters([path])
    old = rows(model)
    a_lora(path, base, seed=9, rank=5)
    model.set_adapters([path])
    assert nmse(rows(model), old) > 1e-3


def test_a_conversation_goes_on_with_the_model_that_is_set(model, base, files):
    prompt, greedy = TOKENS[:12], wb.SamplingOptions(temperature=0)
    with model.session() as session:
        before = [list(each.tokens(prompt, greedy, num_predict=6)) for each in (model, session)]
        list(session.tokens(prompt, greedy, num_predict=6))
        assert session.stats.reused_tokens
        model.set_adapters([files[0]])
        after = [list(each.tokens(prompt, greedy, num_predict=6)) for each in (model, session)]
        assert session.stats.reused_tokens == 0
    with wb.load(base, device="cpu", kv_dtype="f32", adapters=[files[0]]) as fresh:
        wanted = list(fresh.tokens(prompt, greedy, num_predict=6))
    assert after == [wanted, wanted]
    assert before[0] != wanted


def test_setting_what_is_set_keeps_the_cache(model, files):
    model.set_adapters([files[0]])
    model.logits(TOKENS)
    list(model.tokens(TOKENS, num_predict=1))
    model.set_adapters([files[0]])
    list(model.tokens(TOKENS, num_predict=1))
    assert model.stats.reused_tokens == len(TOKENS) - 1


def test_a_stream_under_way_keeps_its_model(model, files):
    stream = model.tokens(TOKENS, wb.SamplingOptions(temperature=0), num_predict=4)
    next(stream)
    for change in (model.set_adapters, model.set_control_vectors):
        with pytest.raises(wb.BackendError, match="1 of 1 sessions have a running stream"):
            change([files[0] if change == model.set_adapters else files[2]])
    assert model.model.variant == ()
    assert len(list(stream)) == 3
    model.set_adapters([files[0]])
    assert model.model.variant


def test_threads_change_a_model_one_after_the_other(model, files):
    wanted = {}
    for path in files[:2]:
        model.set_adapters([path])
        wanted[path] = rows(model)

    def change(path):
        model.set_adapters([path])

    threads = [threading.Thread(target=change, args=(path,)) for path in files[:2] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    [(last, _)] = model.adapters.loras
    assert np.array_equal(rows(model), wanted[last])


BAD = {
    "a model": ({"general.type": "model"}, {}, "key 'general.type' is 'model', needs 'adapter'"),
    "no type": ({"general.type": None}, {}, "key 'general.type' is '', needs 'adapter'"),
    "ia3": ({"adapter.type": "ia3"}, {}, "key 'adapter.type' is 'ia3', needs 'lora'"),
    "other architecture": (
        {"general.architecture": "qwen2"},
        {},
        "an adapter of architecture 'qwen2', the model BASE is 'llama'",
    ),
    "no alpha": ({"adapter.lora.alpha": None}, {}, "key 'adapter.lora.alpha' is missing"),
    "alpha of text": ({"adapter.lora.alpha": "8"}, {}, "key 'adapter.lora.alpha' is a string"),
    "endless alpha": ({"adapter.lora.alpha": float("inf")}, {}, "needs a finite float"),
    "activated": ({"adapter.alora.invocation_tokens": [1, 2]}, {}, "an activated LoRA (aLoRA)"),
    "wide a": (
        {},
        {"blk.0.attn_q.weight.lora_a": np.zeros((4, 65), "f4")},
        "tensor blk.0.attn_q.weight.lora_a is (4, 65), blk.0.attn_q.weight of BASE is (64, 64), so "
        "it needs (4, 64)",
    ),
    "short b": (
        {},
        {"blk.0.attn_v.weight.lora_b": np.zeros((31, 4), "f4")},
        "tensor blk.0.attn_v.weight.lora_b is (31, 4), blk.0.attn_v.weight of BASE is (32, 64), so "
        "it needs (32, 4)",
    ),
    "ranks": (
        {},
        {"blk.0.attn_v.weight.lora_b": np.zeros((32, 5), "f4")},
        "tensor blk.0.attn_v.weight.lora_a has rank 4, blk.0.attn_v.weight.lora_b has rank 5",
    ),
    "one of a pair": (
        {},
        {"blk.0.attn_q.weight.lora_b": None},
        "tensor blk.0.attn_q.weight.lora_a is in the file, blk.0.attn_q.weight.lora_b is missing",
    ),
    "unknown weight": (
        {},
        {f"blk.9.x.weight.lora_{part}": np.ones((4, 64), "f4") for part in "ab"},
        "tensor blk.9.x.weight.lora_a: the model BASE has no blk.9.x.weight",
    ),
    "norm": (
        {},
        {f"output_norm.weight.lora_{part}": np.ones((1, 64), "f4") for part in "ab"},
        "tensor output_norm.weight.lora_a: output_norm.weight is not a matrix",
    ),
    "unknown ending": ({}, {"blk.0.attn_q.bias": np.ones(64, "f4")}, "ends in neither .lora_a nor"),
    "integers": (
        {},
        {"blk.0.attn_q.weight.lora_a": np.zeros((4, 64), "i4")},
        "tensor blk.0.attn_q.weight.lora_a is i32, needs floats",
    ),
    "nan": (
        {},
        {"blk.0.attn_q.weight.lora_a": np.full((4, 64), np.nan, "f4")},
        "blk.0.attn_q.weight.lora_a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_an_adapter_that_does_not_fit_changes_nothing(tmp_path, base, model, files, name):
    keys, tensors, said = BAD[name]
    bad = a_lora(tmp_path / "bad.gguf", base, keys=keys, tensors=tensors)
    model.set_adapters([(files[0], 0.5)])
    before, nbytes = rows(model), held(model)
    with pytest.raises(wb.ModelError) as error:
        model.set_adapters([files[1], bad])
    message = str(error.value)
    assert message.startswith(f"{bad}: ")
    assert said.replace("BASE", str(base)) in message
    assert "\n" not in message
    assert held(model) == nbytes
    assert list(model.adapters.loras) == [(files[0], 0.5)]
    assert np.array_equal(rows(model), before)
    with pytest.raises(wb.ModelError, match=r"bad\.gguf"):
        wb.load(base, device="cpu", adapters=[bad])


def test_an_adapter_without_pairs_is_refused(tmp_path, base, model):
    bad = a_lora(tmp_path / "bad.gguf", base, only=("nothing",))
    with pytest.raises(wb.ModelError, match=r"none of its 0 tensors ends in \.lora_a"):
        model.set_adapters(bad)


def test_a_weight_that_is_multiplied_with_nothing_alone_is_refused(folder, tmp_path):
    base = written(folder / "bert.gguf", OUTLINES["bert"])
    pair = {"position_embd.weight.lora_a": np.zeros((2, 64), "f4")}
    pair["position_embd.weight.lora_b"] = np.zeros((64, 2), "f4")
    bad = a_lora(tmp_path / "bad.gguf", base, only=("attn_q",), tensors=pair)
    said = r"position_embd\.weight is used by no product or lookup of 'bert'"
    with wb.load(base, device="cpu") as model, pytest.raises(wb.ModelError, match=said):
        model.set_adapters([bad])


def test_norms_in_an_adapter_are_left_out_and_told(tmp_path, base, model, files, caplog):
    norm = {"blk.0.attn_norm.weight": np.full(64, 9, "f4")}
    model.set_adapters([files[0]])
    wanted = rows(model)
    model.set_adapters([a_lora(tmp_path / "norms.gguf", base, tensors=norm)])
    assert np.array_equal(rows(model), wanted)
    assert "1 norms in it are not used, blk.0.attn_norm.weight first" in caplog.text


def test_an_alpha_of_nothing_means_the_rank(tmp_path, base, model):
    kept = []
    for alpha in (0.0, 4.0):
        path = a_lora(tmp_path / f"{alpha}.gguf", base, keys={"adapter.lora.alpha": alpha})
        model.set_adapters([path])
        kept.append(rows(model))
    assert np.array_equal(*kept)


def test_a_rank_of_one_may_lack_its_axis(tmp_path, base, model):
    whole = a_lora(tmp_path / "whole.gguf", base, only=("attn_q",), rank=1)
    model.set_adapters([whole])
    wanted = rows(model)
    reader = gguf.GGUFReader(whole)
    flat = {t.name: np.array(t.data).reshape(-1) for t in reader.tensors if t.name.endswith("_a")}
    model.set_adapters(
        [a_lora(tmp_path / "flat.gguf", base, only=("attn_q",), rank=1, tensors=flat)]
    )
    assert np.array_equal(rows(model), wanted)


BAD_CONTROL = {
    "width": ({"direction.1": np.ones(65, "f4")}, "tensor direction.1 is f32 (65,), the model"),
    "type": ({"direction.1": np.ones(64, "f2")}, "tensor direction.1 is f16 (64,), the model"),
    "layer 0": ({"direction.0": np.ones(64, "f4")}, "tensor direction.0: the model"),
    "layer 99": ({"direction.99": np.ones(64, "f4")}, "layers, needs a number from 1 to"),
    "name": (
        {"blk.0.x": np.ones(64, "f4")},
        "tensor blk.0.x: unexpected, a control vector has only direction.1",
    ),
    "nan": ({"direction.1": np.full(64, np.nan, "f4")}, "has values that are NaN or infinite"),
}


@pytest.mark.parametrize("name", BAD_CONTROL)
def test_a_control_vector_that_does_not_fit_changes_nothing(tmp_path, base, model, files, name):
    tensors, said = BAD_CONTROL[name]
    bad = a_control_vector(tmp_path / "bad.gguf", base, tensors=tensors)
    model.set_control_vectors([files[2]])
    before = rows(model)
    with pytest.raises(wb.ModelError) as error:
        model.set_control_vectors([bad])
    assert str(error.value).startswith(f"{bad}: ")
    assert said in str(error.value)
    assert np.array_equal(rows(model), before)


@pytest.mark.parametrize("layers", [(0, 1), (2, 1), (1, 99)])
def test_layers_that_are_not_there_are_refused(model, files, layers):
    said = f"layers {layers[0]} to {layers[1]}, the model has"
    with pytest.raises(wb.OptionError, match=said):
        model.set_control_vectors([files[2]], layers)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "adapters: 3 (int), needs a list of files"),
        ([3], "adapters[0]: 3 (int), needs a path, or a path and a scale"),
        ([("a.gguf", "b.gguf")], "adapters[0]: scale 'b.gguf' (str), needs a finite number"),
        ([("a.gguf", float("nan"))], "adapters[0]: scale nan (float), needs a finite number"),
    ],
)
def test_what_is_no_list_of_files_is_refused(model, given, said):
    with pytest.raises(wb.OptionError) as error:
        model.set_adapters(given)
    assert str(error.value) == said


def test_a_file_that_is_not_there_is_named(model, tmp_path):
    for change in (model.set_adapters, model.set_control_vectors):
        with pytest.raises(wb.GGUFError, match=r"gone\.gguf"):
            change([tmp_path / "gone.gguf"])


def test_a_model_whose_layers_are_its_own_takes_no_control_vectors(model, files, monkeypatch):
    monkeypatch.setattr(type(model.model), "steerable", False)
    with pytest.raises(wb.ModelError, match="architecture 'llama' takes no control vectors"):
        model.set_control_vectors([files[2]])
