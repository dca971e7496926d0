"""Arguments are taken where their meaning is clear; anything else is one line of ours."""

from pathlib import Path

import numpy as np
import pytest

import wgpu_backend
from tests.builders import tiny_model
from wgpu_backend.device.adapters import Devices
from wgpu_backend.errors import (
    BackendError,
    DeviceError,
    DTypeError,
    ModelError,
    OptionError,
    TemplateError,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tiny_model(tmp_path_factory.mktemp("arguments") / "model.gguf")
    with wgpu_backend.load(path, device="cpu", num_ctx="128") as model:
        yield model


@pytest.mark.parametrize(
    "given",
    [
        {"options": {"temperature": 0, "num_predict": 4, "stop": None}},
        {"options": {"temperature": "0"}, "num_predict": "4", "stop": None},
        {"options": {"temperature": np.float32(0)}, "num_predict": np.int64(4)},
    ],
)
def test_options_are_taken_as_ollama_has_them(small, given):
    options = wgpu_backend.SamplingOptions(temperature=0)
    wanted = small.generate("in the", options=options, num_predict=4)
    assert small.generate("in the", **given) == wanted
    assert small.stats.tokens == 4


def test_no_limit_and_a_seed_of_numpys_are_taken(small):
    wanted = small.generate("in the", options={"seed": 2**63})
    given = {"num_predict": None, "options": {"seed": np.uint64(2**63)}}
    assert small.generate("in the", **given) == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": 5}, r"options: 5 \(int\), needs SamplingOptions or a dict"),
        ({"options": {"temprature": 0}}, "'temprature' is unknown; did you mean 'temperature'"),
        ({"options": {"num_ctx": 64}}, r"num_ctx is an argument of load\(\)"),
        ({"options": {"num_predict": 1}, "num_predict": 2}, "num_predict: 2, and 1 in options"),
        ({"options": {"top_k": "many"}}, "top_k: 'many', needs a whole number"),
        ({"stop": 5}, r"stop: 5 \(int\), needs a string or a list"),
        ({"stop": [5]}, r"stop\[0\]: 5 \(int\), needs a string"),
        ({"system": 5}, r"system: 5 \(int\), needs a string"),
        ({"num_predict": "x"}, "num_predict: 'x', needs a whole number"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_one_line(small, given, message):
    with pytest.raises(OptionError, match=message):
        small.generate("in the", **given)


@pytest.mark.parametrize("prompt", [5, None, b"in", ["in"]])
def test_a_prompt_that_is_no_text_is_one_line(small, prompt):
    with pytest.raises(OptionError, match=r"prompt: .*, needs a string"):
        small.generate(prompt)


@pytest.mark.parametrize("messages", [5, None, b"in"])
def test_messages_that_are_no_list_are_one_line(small, messages):
    with pytest.raises(TemplateError, match=r"chat: messages are .*, needs a list of them"):
        small.chat(messages)


def test_what_is_embedded_and_scored_is_checked(small):
    with pytest.raises(OptionError, match=r"texts\[1\]: 5 \(int\), needs a string"):
        small.embed(["in", 5])
    with pytest.raises(OptionError, match=r"texts: None \(NoneType\), needs a string or a list"):
        small.embed(None)
    for tokens in (5, None):
        with pytest.raises(ModelError, match=r"tokens: .*, needs whole numbers"):
            small.logits(tokens)


def test_a_text_alone_is_what_the_user_says():
    with wgpu_backend.load("story", device=Devices()[-1], num_ctx=np.int64(128)) as model:
        assert model.num_ctx == 128
        how = {"num_predict": 2, "options": {"temperature": 0}}
        answer = model.chat([{"role": "user", "content": "Tell me a story."}], **how)
        assert model.chat("Tell me a story.", **how) == answer
        assert model.chat({"role": "user", "content": "Tell me a story."}, **how) == answer


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"path": 5}, ModelError, r"path: 5 \(int\), needs the path of a GGUF file or a folder"),
        ({"path": b"story"}, ModelError, "path: b'story'"),
        ({"path": Path("no.gguf")}, BackendError, "no.gguf"),
        ({"device": 1.5}, DeviceError, r"device 1\.5: a float names no device, needs an id"),
        ({"device": 99}, DeviceError, "device 99: no such device"),
        ({"kv_dtype": 3}, DTypeError, "kv_dtype: 3"),
        ({"kv_dtype": "f17"}, DTypeError, "dtype 'f17': unknown, needs one of"),
        ({"num_ctx": "long"}, OptionError, "num_ctx: 'long', needs a whole number"),
        ({"profile": "fast"}, OptionError, "profile: 'fast' .* needs 'full' or 'baseline'"),
        ({"fusion": 3}, OptionError, r"fusion: 3 \(int\)"),
        ({"progress": 3}, OptionError, r"progress: 3 \(int\), needs a function"),
        ({"cancelled": "no"}, OptionError, "cancelled: 'no'"),
    ],
)
def test_loading_names_the_argument_that_is_wrong(given, error, message):
    with pytest.raises(error, match=message):
        wgpu_backend.load(**{"path": "story", "device": "cpu", **given})
