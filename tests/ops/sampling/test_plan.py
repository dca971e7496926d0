import pytest

from wgpu_backend.ops.sampling.host import Plan, SamplingOptions, plan


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("gpu", 64, 0)),
        ({"top_k": 64}, ("gpu", 64, 0)),
        ({"top_k": 65}, ("gpu", 256, 0)),
        ({"top_k": 256}, ("gpu", 256, 0)),
        ({"top_k": 257}, ("host", 0, 0)),
        ({"top_k": 0}, ("host", 0, 0)),
        ({"typical_p": 0.9}, ("host", 0, 0)),
        ({"temperature": 0.0}, ("greedy", 1, 0)),
        ({"top_k": 1}, ("greedy", 1, 0)),
        ({"temperature": 0.0, "top_k": 0, "typical_p": 0.5}, ("greedy", 1, 0)),
        ({"repeat_penalty": 1.1}, ("gpu", 64, 64)),
        ({"presence_penalty": 1.0, "repeat_last_n": 65}, ("gpu", 64, 256)),
        ({"frequency_penalty": 1.0, "repeat_last_n": 1024}, ("gpu", 64, 1024)),
        ({"repeat_penalty": 1.1, "repeat_last_n": 1025}, ("host", 0, 0)),
        ({"repeat_penalty": 1.1, "repeat_last_n": -1}, ("host", 0, 0)),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, ("gpu", 64, 0)),
        ({"repeat_last_n": -1}, ("gpu", 64, 0)),
    ],
)
def test_the_options_decide_where(options: dict, expected: tuple[str, int, int]) -> None:
    assert plan(SamplingOptions(**options)) == Plan(*expected)


def test_a_joined_plan_covers_every_sequence() -> None:
    greedy, wide = Plan("greedy", 1, 64), Plan("gpu", 256, 0)

    assert Plan.merge([greedy, greedy]) == greedy
    assert Plan.merge([greedy, wide]) == Plan("gpu", 256, 64)
    assert Plan.merge([greedy, Plan("host", 0, 0), wide]).kind == "host"
