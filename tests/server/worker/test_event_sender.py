"""A worker's events arrive complete and in order."""

import socket
import threading
from contextlib import closing, contextmanager

from tests.patience import PATIENCE
from wgpu_backend.engine.batching.results import Event, Finish, TokenLogprob, Usage
from wgpu_backend.server.worker.event_sender import EventSender, ForwardingMailbox
from wgpu_backend.server.worker.frames import make_reader, read_message
from wgpu_backend.server.worker.messages import from_plain, parse_error

END = Finish("stop", "", context_full=False, usage=Usage(completion_tokens=3))


@contextmanager
def linked():
    here, there = socket.socketpair()
    there.settimeout(PATIENCE)
    with closing(here), closing(there), make_reader(there) as source:
        sender = EventSender(here)
        yield sender, source
        sender.close()


def events_of(source):
    message, _ = read_message(source)
    assert message["type"] == "events"
    return [(number, from_plain(Event, plain)) for number, plain in message["events"]]


def test_each_token_is_an_event_also_where_the_socket_takes_none():
    here, there = socket.socketpair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    told = [Event(0, str(number), (number,)) for number in range(3000)]
    told.append(Event(0, "", (), (), END))
    with closing(here), closing(there), make_reader(there) as source:
        sender = EventSender(here)
        posted = ForwardingMailbox(5, 1, sender)
        for event in told:
            posted.put(event)
        found = []
        while not found or found[-1][1].finish is None:
            found += events_of(source)
        sender.close()
    assert found == [(5, event) for event in told]


def test_tokens_with_log_probabilities_are_an_event_each():
    told = [Event(0, text, (7,), (TokenLogprob(7, -0.5, b"x"),)) for text in "abcd"]
    told.append(Event(0, "", (), (), END))
    with linked() as (sender, source):
        posted = ForwardingMailbox(5, 1, sender)
        for event in told:
            posted.put(event)
        found = []
        while not found or found[-1][1].finish is None:
            found += events_of(source)
    assert found == [(5, event) for event in told]


def test_what_is_told_goes_out_by_itself():
    with linked() as (sender, source):
        posted = ForwardingMailbox(1, 1, sender)
        for text in "abc":
            posted.put(Event(0, text, (7,)))
            [(_, event)] = events_of(source)
            assert event.text == text


def test_events_and_others_keep_their_order():
    with linked() as (sender, source):
        posted = ForwardingMailbox(1, 1, sender)
        for number in range(200):
            posted.put(Event(0, str(number), (number,)))
            sender.send({"type": "answer", "id": number}, bytes([number]))
        told = []
        while len(told) < 400:
            message, raw = read_message(source)
            if message["type"] == "events":
                told += [("event", plain[2][0]) for _, plain in message["events"]]
            else:
                told.append(("answer", message["id"]))
                assert raw == bytes([message["id"]])
    assert told == [(kind, n) for n in range(200) for kind in ("event", "answer")]


def test_all_is_sent_before_the_end():
    here, there = socket.socketpair()
    with closing(here), closing(there), make_reader(there) as source:
        sender = EventSender(here)
        posted = ForwardingMailbox(1, 1, sender)
        for number in range(1000):
            posted.put(Event(0, "", (number,)))
        closing_thread = threading.Thread(target=sender.close)
        closing_thread.start()
        found = []
        while len(found) < 1000:
            found += [token for _, event in events_of(source) for token in event.tokens]
        closing_thread.join()
    assert found == [*range(1000)]


def test_an_unforeseen_error_is_named_to_the_client_and_shown_in_the_log(caplog):
    with linked() as (sender, source):
        try:
            raise IndexError("/home/someone: the text of another request")
        except IndexError as error:
            sender.send_error(5, error)
        message, _ = read_message(source)
    assert (message["type"], message["id"]) == ("failed", 5)
    assert str(parse_error(message["error"])) == "internal error: IndexError"
    assert "Traceback" in caplog.text
    assert "/home/someone: the text of another request" in caplog.text
