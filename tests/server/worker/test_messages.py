"""Messages between server and worker: the receiver reads what the sender wrote."""

import json
import math
from dataclasses import fields

import pytest

from wgpu_backend import errors
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import (
    EngineStatus,
    Event,
    Finish,
    Reading,
    SlotStatus,
    TokenLogprob,
    Usage,
)
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.server.worker.messages import (
    LoadSpec,
    error_to_plain,
    from_plain,
    parse_error,
    to_plain,
)
from wgpu_backend.text.grammar import Grammar

REQUEST = Request(
    [1, 2, 3],
    options=SamplingOptions(
        temperature=0.25, top_k=7, seed=2**63, dry_multiplier=0.5, mirostat=2, samplers="tkd",
        dry_sequence_breakers=["\ud800", "\n"],
    ),
    max_tokens=5,
    stop=["a", "b"],
    logprobs=2,
    logit_bias={4: -math.inf, 5: 1.5},
    when_full="shift",
    keep=2,
    n=3,
    ignore_eos=True,
    grammar=Grammar("regex", "[a-z ]+"),
    progress=True,
    sampled=True,
    max_seconds=1.5,
    min_tokens=3,
    stop_tokens=(4, 5),
    prompt_logprobs=True,
    lora=[(1, 0.5), (0, -2.0)],
)  # fmt: skip


def over(plain):
    return json.loads(json.dumps(plain))


def sent(value):
    """A data class on the other side."""
    return from_plain(type(value), over(to_plain(value)))


def test_every_field_of_a_request_arrives():
    assert sent(REQUEST) == REQUEST
    plain = Request([1])
    assert sent(plain).max_tokens is None


def test_no_field_of_the_request_above_has_its_default():
    default = Request([1])
    same = [f.name for f in fields(Request) if getattr(default, f.name) == getattr(REQUEST, f.name)]
    # Prepared pictures stay in the process that has the tower.
    assert same == ["placed"]


def test_events_arrive():
    usage = Usage(1, 2, 3, 0.5, 0.25, 0.125)
    top = TokenLogprob(7, -0.5, b"\xff\xfe")
    finish = Finish("stop", "é", context_full=True, usage=usage)
    event = Event(1, "é\n", (5, 6), (TokenLogprob(5, -1.5, b"\xc3", (top,)),), finish)
    assert sent(event) == event
    judged = Event(0, "", prompt_logprobs=(TokenLogprob(3, -2.5, b"x", (top,)),))
    for one in (Event(0, "a"), judged, Event(0, "", reading=Reading(5, 2, 9, 0.5))):
        assert sent(one) == one


def test_a_status_arrives():
    slots = (None, SlotStatus(1, 2, 3, 4, 5))
    status = EngineStatus(slots, *range(11))
    assert sent(status) == status


def test_a_device_arrives():
    device = DeviceInfo("vulkan:0", "a", limits={"b": 5}, features=("c",), total_memory=7)
    assert sent(device) == device
    assert sent(device).limits == device.limits


def test_what_is_loaded_arrives():
    spec = LoadSpec(
        "a.gguf", "cpu", adapters=(("b.gguf", 0.5),), control_layers=(1, 2), engine={"a": 1}
    )
    made = sent(spec).arguments
    assert (made["adapters"], made["control_layers"]) == ([("b.gguf", 0.5)], (1, 2))
    assert not {"path", "imports", "engine"} & made.keys()


KINDS = [c for c in vars(errors).values() if isinstance(c, type)]
ERRORS = [c.__name__ for c in KINDS if issubclass(c, errors.BackendError)]


@pytest.mark.parametrize("name", ERRORS)
def test_errors_arrive_as_what_they_are(name):
    error = parse_error(over(error_to_plain(getattr(errors, name)("why: 5, needs 3"))))
    assert (type(error).__name__, str(error)) == (name, "why: 5, needs 3")


def test_what_nobody_foresaw_arrives_by_its_kind():
    error = parse_error(over(error_to_plain(KeyError("x"))))
    assert type(error) is errors.BackendError
    assert str(error) == "KeyError: 'x'"
    assert type(parse_error({"kind": "annotations", "message": ""})) is errors.BackendError
    assert "no.gguf: gone" in str(
        parse_error(error_to_plain(FileNotFoundError(2, "gone", "no.gguf")))
    )
