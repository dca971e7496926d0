import math

import pytest

from wgpu_backend.errors import BackendError, OptionError
from wgpu_backend.ops.sampling.host import Sampler, SamplingOptions


def test_defaults_are_ollamas() -> None:
    options = SamplingOptions()

    assert (options.temperature, options.top_k, options.top_p, options.min_p) == (0.8, 40, 0.9, 0)
    assert (options.typical_p, options.repeat_penalty, options.repeat_last_n) == (1, 1, 64)
    assert (options.presence_penalty, options.frequency_penalty, options.seed) == (0, 0, None)
    assert not options.greedy
    assert not options.penalised


@pytest.mark.parametrize(
    ("name", "value", "needs"),
    [
        ("temperature", -0.1, "0.0 to 100.0"),
        ("temperature", math.inf, "0.0 to 100.0"),
        ("top_k", -1, "0 to 16777216"),
        ("top_p", 1.01, "0.0 to 1.0"),
        ("top_p", math.nan, "0.0 to 1.0"),
        ("min_p", -1e-9, "0.0 to 1.0"),
        ("typical_p", 2, "0.0 to 1.0"),
        ("repeat_penalty", 0.0, "0.01 to 100.0"),
        ("repeat_last_n", -2, "-1 to 16777216"),
        ("presence_penalty", -math.inf, "-100.0 to 100.0"),
        ("frequency_penalty", 101.0, "-100.0 to 100.0"),
        ("seed", -2, "-1 to 18446744073709551615"),
        ("seed", 2**64, "-1 to 18446744073709551615"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_range(name: str, value: float, needs: str) -> None:
    with pytest.raises(OptionError) as caught:
        SamplingOptions(**{name: value})

    assert str(caught.value) == f"{name}: {value}, needs {needs}"
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, BackendError)


@pytest.mark.parametrize(
    ("name", "value", "needs"),
    [
        ("temperature", "hot", "a number"),
        ("temperature", None, "a number"),
        ("top_p", True, "a number"),
        ("top_k", 1.5, "a whole number"),
        ("top_k", True, "a whole number"),
        ("seed", 0.5, "a whole number"),
    ],
)
def test_a_value_of_another_kind_is_refused(name: str, value: object, needs: str) -> None:
    with pytest.raises(OptionError) as caught:
        SamplingOptions(**{name: value})

    assert str(caught.value) == f"{name}: {value!r}, needs {needs}"


def test_a_vocabulary_needs_a_token() -> None:
    with pytest.raises(OptionError, match="vocab_size: 0, needs at least 1"):
        Sampler(SamplingOptions(), 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"repeat_penalty": 1.1}, True),
        ({"presence_penalty": -0.5}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, False),
        ({"repeat_last_n": -1}, False),
    ],
)
def test_penalties_count_when_one_is_on_and_looks_back(options: dict, expected: bool) -> None:
    assert SamplingOptions(**options).penalised is expected
