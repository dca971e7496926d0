import numpy as np
import pytest

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Config

METADATA = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.block_count": 2,
    "llama.eps": 1e-5,
    "llama.nan": float("nan"),
    "llama.negative": -1,
    "llama.causal": True,
    "llama.kv": np.array([4, 2], "<u4"),
    "llama.negatives": np.array([1, -2], "<i4"),
    "llama.sections": np.array([2**64 - 1], "<u8"),
    "llama.factors": np.array([0.5, 2.0], "<f4"),
    "llama.flags": np.array([True, False]),
    "tokenizer.ggml.tokens": ["a", "b"],
}


@pytest.fixture
def config():
    return Config("m.gguf", METADATA)


def test_keys_get_the_prefix_of_the_architecture(config):
    assert config.uint("block_count") == 2
    assert config.string("general.name") == "tiny"
    assert config.strings("tokenizer.ggml.tokens") == ["a", "b"]


def test_membership_follows_the_prefix_rule(config):
    assert "block_count" in config
    assert "general.name" in config
    assert "context_length" not in config


def test_values_have_their_types(config):
    assert config.float("eps") == 1e-5
    assert config.bool("causal") is True
    assert config.ints("kv") == [4, 2]
    assert config.ints("sections") == [2**64 - 1]
    assert config.floats("factors") == [0.5, 2.0]


def test_defaults_stand_in_for_missing_keys(config):
    assert config.string("x", "") == ""
    assert config.uint("x", 0) == 0
    assert config.float("x", 0.0) == 0.0
    assert config.bool("x", False) is False
    assert config.strings("x", []) == []
    assert config.ints("x", [1]) == [1]
    assert config.floats("x", []) == []
    assert config.uint_per_layer("x", 3, 7) == [7, 7, 7]


def test_defaults_do_not_hide_a_wrong_type(config):
    with pytest.raises(ModelError, match="is a bool"):
        config.uint("causal", 1)
    with pytest.raises(ModelError, match="needs an array of integers"):
        config.ints("eps", [])


GETTERS = ["string", "uint", "float", "bool", "strings", "ints", "floats"]


@pytest.mark.parametrize("getter", GETTERS)
def test_a_missing_key_names_file_key_and_architecture(config, getter):
    with pytest.raises(
        ModelError, match=r"^m\.gguf: key 'llama\.x' is missing, architecture 'llama' needs it$"
    ):
        getattr(config, getter)("x")


WRONG = [
    ("string", "block_count", r"is an integer \(2\), needs a string"),
    ("uint", "general.name", r"is a string \('tiny'\), needs an unsigned integer"),
    ("uint", "causal", r"is a bool \(True\), needs an unsigned integer"),
    ("uint", "kv", r"is an array of uint32, needs an unsigned integer"),
    ("uint", "negative", r"is -1, needs at least 0"),
    ("float", "block_count", r"is an integer \(2\), needs a float"),
    ("float", "nan", r"is nan, needs a finite float"),
    ("bool", "block_count", r"is an integer \(2\), needs a bool"),
    ("strings", "general.name", r"needs an array of strings"),
    ("ints", "factors", r"is an array of float32, needs an array of integers"),
    ("ints", "flags", r"is an array of bool, needs an array of integers"),
    ("ints", "tokenizer.ggml.tokens", r"is an array of strings, needs an array of integers"),
    ("floats", "kv", r"is an array of uint32, needs an array of floats"),
]


@pytest.mark.parametrize(("getter", "key", "message"), WRONG)
def test_a_wrong_type_names_both_types(config, getter, key, message):
    with pytest.raises(ModelError, match=rf"^m\.gguf: key '.*{message}"):
        getattr(config, getter)(key)


def test_bounds_are_checked_with_both_numbers(config):
    assert config.uint("block_count", at_least=2, at_most=2) == 2
    with pytest.raises(ModelError, match="is 2, needs at least 3"):
        config.uint("block_count", at_least=3)
    with pytest.raises(ModelError, match="is 2, needs at most 1"):
        config.uint("block_count", at_most=1)


def test_a_number_or_an_array_gives_each_layer_its_value(config):
    assert config.uint_per_layer("block_count", 3) == [2, 2, 2]
    assert config.uint_per_layer("kv", 2) == [4, 2]


def test_layers_and_values_have_to_agree(config):
    with pytest.raises(ModelError, match="has 2 values, the model has 3 layers"):
        config.uint_per_layer("kv", 3)
    with pytest.raises(ModelError, match="holds -2, needs at least 0"):
        config.uint_per_layer("negatives", 2)
    with pytest.raises(ModelError, match="needs an array of integers"):
        config.uint_per_layer("factors", 2)


def test_as_many_layers_as_a_file_has_tensors(config):
    assert len(config.uint_per_layer("block_count", 65_536)) == 65_536


def test_an_absurd_layer_count_allocates_nothing(config):
    with pytest.raises(ModelError, match="4294967295 layers, at most 65536"):
        config.uint_per_layer("block_count", 2**32 - 1)


@pytest.mark.parametrize("metadata", [{}, {"general.name": "x"}])
def test_a_file_without_architecture_says_so(metadata):
    config = Config("m.gguf", metadata)
    with pytest.raises(ModelError, match=r"'general\.architecture' is missing"):
        config.uint("block_count")
    with pytest.raises(ModelError, match=r"'general\.file_type' is missing"):
        config.uint("general.file_type")


@pytest.mark.parametrize("name", ["", 3, ["llama"]])
def test_an_architecture_is_a_name(name):
    with pytest.raises(ModelError, match="needs a name"):
        _ = Config("m.gguf", {"general.architecture": name}).architecture
