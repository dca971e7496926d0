"""Files whose keys, weights and tokens do not fit together: reported by name, before a run."""

import numpy as np
import pytest

import wgpu_backend
from tests.builders import Dims, tiny_model
from wgpu_backend.errors import ModelError
from wgpu_backend.ops.attention.options import RopeOptions
from wgpu_backend.ops.sampling.host import SamplingOptions

DIMS = Dims(layers=1)


def load(path):
    wgpu_backend.load(path, device="cpu").close()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "embedding_length",
            65,
            r"token_embd.weight is \(270, 64\), the file's keys require .*, 65\)",
        ),
        ("attention.head_count", 2, r"attn_q.weight is \(64, 64\), the file's keys require \(32,"),
        ("attention.head_count_kv", 1, r"attn_k.weight is \(32, 64\), .* require \(16, 64\)"),
        ("attention.key_length", 2**31 - 1, r"attn_q.weight is \(64, 64\)"),
        ("attention.value_length", 8, r"attn_v.weight is \(32, 64\), .* require \(16, 64\)"),
        ("feed_forward_length", 95, r"ffn_gate.weight is \(96, 64\), .* require \(95, 64\)"),
        ("attention.layer_norm_rms_epsilon", -1.0, "layer_norm_rms_epsilon is -1.0, needs at"),
        ("context_length", 0, "'llama.context_length' is 0, needs at least 1"),
        ("rope.dimension_count", 2**31, "'llama.rope.dimension_count' is 2.*, needs at most 16"),
        ("rope.scaling.type", "su", "'su', needs one of linear, yarn, longrope, none"),
        ("rope.scaling.type", "longrope", "'longrope', needs the tensors rope_factors_long"),
        ("rope.freq_base", 1e-45, "angles that are not finite"),
        ("rope.scaling.factor", 1e-45, "angles that are not finite"),
    ],
)
def test_a_key_that_does_not_fit_is_named(tmp_path, key, value, said):
    path = tiny_model(tmp_path / "model.gguf", dims=DIMS, extra={f"llama.{key}": value})
    with pytest.raises(ModelError, match=said):
        load(path)


@pytest.mark.parametrize("name", ["attn_output", "ffn_gate", "ffn_up", "ffn_down"])
def test_a_weight_of_one_row_is_not_stretched_over_the_others(tmp_path, name):
    wide = 96 if name == "ffn_down" else 64
    row = {f"blk.0.{name}.weight": np.ones((1, wide), "f4")}
    path = tiny_model(tmp_path / "model.gguf", dims=DIMS, vectors=row)
    with pytest.raises(
        ModelError, match=rf"tensor blk\.0\.{name}\.weight is \(1, {wide}\), the file's"
    ):
        load(path)


@pytest.mark.parametrize("rows", [269, 540])
def test_an_output_has_as_many_rows_as_the_embedding(tmp_path, rows):
    output = {"output.weight": np.ones((rows, 64), "f4")}
    path = tiny_model(tmp_path / "model.gguf", dims=DIMS, tied=True, vectors=output)
    with pytest.raises(ModelError, match=rf"output\.weight is \({rows}, 64\), .* \(270, 64\)"):
        load(path)


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ("blk.0.attn_q.weight", "tensor blk.0.attn_q is missing, SelfAttention.query needs it"),
        ("blk.0.attn_norm.weight", "tensor blk.0.attn_norm is missing, Layer.mixer_norm needs"),
        ("blk.0.ffn_gate.weight", "tensor blk.0.ffn_gate is missing, MLP.gate needs it"),
        ("output_norm.weight", "tensor output_norm is missing, Llama.output_norm needs it"),
    ],
)
def test_a_missing_weight_is_named_wherever_it_stands(tmp_path, left_out, said):
    path = tiny_model(tmp_path / "model.gguf", dims=DIMS)
    old = left_out.encode()
    path.write_bytes(path.read_bytes().replace(old, b"x" * len(old)))
    with pytest.raises(ModelError, match=said):
        load(path)


def test_factors_of_rope_that_are_zero_are_refused():
    with pytest.raises(ModelError, match="angles that are not finite"):
        RopeOptions(16).frequencies(np.zeros(8, "f4"))


def test_a_token_beyond_the_vocabulary_of_a_padded_embedding_has_no_text(tmp_path):
    rows = np.zeros((300, 64), "f4")
    rows[280:] = 1.0  # the only ones with a score above 0
    rows[:270] = np.random.default_rng(0).normal(0, 1e-3, (270, 64))
    path = tiny_model(
        tmp_path / "model.gguf", dims=DIMS, tied=True, vectors={"token_embd.weight": rows}
    )
    with wgpu_backend.load(path, device="cpu") as model:
        options = SamplingOptions(temperature=0)
        made = list(model.tokens([1, 2], options, num_predict=3))
        assert max(made) >= 270
        assert model.generate("in", options=options, num_predict=3) == ""
