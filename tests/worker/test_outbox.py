"""What a worker tells arrives in order, whole, and in few messages."""

import socket
import threading
from contextlib import closing, contextmanager

import pytest

from tests.patience import PATIENCE
from wgpu_backend.errors import BackendError
from wgpu_backend.serving.results import Event, Finish, Reading, TokenLogprob, Usage
from wgpu_backend.worker.frames import opened, read
from wgpu_backend.worker.messages import event_of
from wgpu_backend.worker.outbox import Outbox, Posted

LONG = 3 * PATIENCE  # seconds between sends, where a test is to see that nothing waits for them
END = Finish("stop", "", context_full=False, usage=Usage(completion_tokens=3))


@contextmanager
def linked(*, interval=LONG):
    here, there = socket.socketpair()
    there.settimeout(PATIENCE)
    with closing(here), closing(there), opened(there) as source:
        outbox = Outbox(here)
        outbox.interval = interval
        yield outbox, source
        outbox.close()


def events_of(source):
    message, _ = read(source)
    assert message["tell"] == "events"
    return [(number, event_of(plain)) for number, plain in message["events"]]


def test_the_middle_of_an_answer_waits_and_goes_out_with_its_end():
    first, *middle = [Event(0, text, (7,)) for text in "abcd"]
    last = Event(0, "e", (8,), (), END)
    with linked() as (outbox, source):
        posted = Posted(5, 1, outbox)
        posted.put(first)
        assert events_of(source) == [(5, first)]
        for event in [*middle, last]:
            posted.put(event)
        found = events_of(source)
    assert found == [(5, Event(0, "bcde", (7, 7, 7, 8), (), END))]


@pytest.mark.parametrize("what", ["first", "reading", "failed", "another"])
def test_what_is_rare_does_not_wait(what):
    with linked() as (outbox, source):
        posted = Posted(1, 2, outbox)
        posted.put(Event(0, "a", (1,)))
        assert events_of(source)[0][0] == 1
        posted.put(Event(0, "b", (2,)))  # waits
        match what:
            case "first":
                posted.put(Event(1, "c", (3,)))
            case "reading":
                posted.put(Event(0, "", (), reading=Reading(1, 2, 0, 0.5)))
            case "failed":
                posted.fail(BackendError("broken"))
            case _:
                outbox.tell({"tell": "answer", "id": 9}, b"raw")
        assert events_of(source)[0][1].text == "b"


def test_texts_of_a_choice_are_one_event_and_those_of_others_are_theirs():
    with linked() as (outbox, source):
        first, second = Posted(1, 2, outbox), Posted(2, 1, outbox)
        for posted in (first, second):
            posted.put(Event(0, "", reading=Reading(1, 2, 0, 0.5)))
            events_of(source)
        for number in range(4):
            first.put(Event(number % 2, str(number), (number,)))
            second.put(Event(0, f"<{number}>", (number,)))
        second.put(Event(0, "", (), (), END))
        found = []
        while sum(len(event.tokens) for _, event in found) < 8:
            found += events_of(source)
    for number, choice, text in ((1, 0, "02"), (1, 1, "13"), (2, 0, "<0><1><2><3>")):
        own = [event for n, event in found if (n, event.choice) == (number, choice)]
        assert "".join(event.text for event in own) == text
    assert [event for number, event in found if number == 2][-1].finish == END
    assert len(found) < 8


def test_tokens_with_log_probabilities_are_an_event_each():
    told = [Event(0, text, (7,), (TokenLogprob(7, -0.5, b"x"),)) for text in "abcd"]
    told.append(Event(0, "", (), (), END))
    with linked() as (outbox, source):
        posted = Posted(5, 1, outbox)
        for event in told:
            posted.put(event)
        found = []
        while not found or found[-1][1].finish is None:
            found += events_of(source)
    assert found == [(5, event) for event in told]


def test_what_waits_goes_out_by_itself():
    with linked(interval=0.05) as (outbox, source):
        posted = Posted(1, 1, outbox)
        for text in "abc":
            posted.put(Event(0, text, (7,)))
        found = ""
        while len(found) < 3:
            found += "".join(event.text for _, event in events_of(source))
    assert found == "abc"


def test_cores_that_a_device_computes_on_are_spared():
    with linked(interval=0.0) as (outbox, _):
        outbox.spare_cores()
        assert 0.05 < outbox.interval <= 0.2


def test_events_and_others_keep_their_order():
    with linked(interval=0.0) as (outbox, source):
        posted = Posted(1, 1, outbox)
        for number in range(200):
            posted.put(Event(0, str(number), (number,)))
            outbox.tell({"tell": "answer", "id": number}, bytes([number]))
        told = []
        while len(told) < 400:
            message, raw = read(source)
            if message["tell"] == "events":
                told += [("event", plain[2][0]) for _, plain in message["events"]]
            else:
                told.append(("answer", message["id"]))
                assert raw == bytes([message["id"]])
    assert told == [(kind, n) for n in range(200) for kind in ("event", "answer")]


def test_all_is_sent_before_the_end():
    here, there = socket.socketpair()
    with closing(here), closing(there), opened(there) as source:
        outbox = Outbox(here)
        posted = Posted(1, 1, outbox)
        for number in range(1000):
            posted.put(Event(0, "", (number,)))
        closing_thread = threading.Thread(target=outbox.close)
        closing_thread.start()
        found = []
        while len(found) < 1000:
            found += [token for _, event in events_of(source) for token in event.tokens]
        closing_thread.join()
    assert found == [*range(1000)]
