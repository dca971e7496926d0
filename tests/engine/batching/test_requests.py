"""The checks of requests, and their error messages."""

import math

import pytest

from wgpu_backend.engine.batching.request import Request
from wgpu_backend.errors import OptionError
from wgpu_backend.ops.sampling.host import SamplingOptions


def test_options_may_have_ollamas_names_and_a_stop_text_may_stand_alone():
    made = Request([1], {"temperature": 0, "top_k": 5}, max_tokens=3.0, stop="end")
    assert made.options == SamplingOptions(temperature=0, top_k=5)
    assert (made.max_tokens, made.stop) == (3, ("end",))


def test_choices_differ_in_their_seeds_where_there_is_one():
    seeded = Request([1], {"seed": 2**64 - 1}, n=3)
    assert [seeded.choice_options(i).seed for i in range(3)] == [2**64 - 1, 0, 1]
    assert Request([1], n=2).choice_options(1).seed is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logprobs": 1001}, "logprobs: 1001, needs 0 to 1000"),
        ({"logprobs": True}, "logprobs: True, needs a whole number"),
        ({"n": 0}, "n: 0, needs 1 to 128"),
        ({"keep": -2}, "keep: -2"),
        ({"max_tokens": "many"}, "max_tokens: 'many', needs a whole number"),
        ({"when_full": "drop"}, "when_full: 'drop' (str), needs 'stop' or 'shift'"),
        ({"logit_bias": {1: 101}}, "logit_bias: 101 for token 1, needs -100 to 100"),
        ({"logit_bias": {1: math.nan}}, "logit_bias: nan for token 1"),
        ({"logit_bias": {"a": 1}}, "logit_bias: 'a', needs a whole number"),
        ({"logit_bias": {1: "2"}}, "logit_bias: '2' (str) for token 1, needs a number"),
        ({"logit_bias": [1]}, "logit_bias: [1] (list), needs a dict"),
        ({"stop": [1]}, "stop[0]: 1 (int), needs a string"),
        ({"options": {"temprature": 1}}, "did you mean 'temperature'?"),
        ({"options": {"temperature": math.nan}}, "temperature: nan"),
    ],
)
def test_a_wrong_value_is_named(fields, message):
    with pytest.raises(OptionError) as caught:
        Request([1], **fields)
    assert message in str(caught.value)
