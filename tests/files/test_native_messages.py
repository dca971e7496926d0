"""Lines that C libraries print: those of a pattern vanish, others come."""

import os
import re
import threading

import pytest

from wgpu_backend.files.native_messages import discard_messages


def test_lines_of_a_pattern_are_discarded(capfd):
    with discard_messages(re.compile(rb"Note: [^\n]*\n")):
        os.write(2, b"one\nNote: two\n")
    os.write(2, b"three\n")
    assert capfd.readouterr().err == "one\nthree\n"


def fail_with_a_line():
    with discard_messages(re.compile(rb"Note")):
        os.write(2, b"one\n")
        raise KeyError


def test_lines_are_printed_after_an_error(capfd):
    with pytest.raises(KeyError):
        fail_with_a_line()
    assert capfd.readouterr().err == "one\n"


def test_threads_leave_standard_error_as_it_was(capfd):
    """They exchange it one after the other."""

    def print_often(number):
        for _ in range(50):
            with discard_messages(re.compile(rb"-")):
                os.write(2, b"-%d\n" % number)

    threads = [threading.Thread(target=print_often, args=(number,)) for number in range(4)]
    before = os.fstat(2)
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    after = os.fstat(2)
    assert (after.st_dev, after.st_ino) == (before.st_dev, before.st_ino)
    found = capfd.readouterr().err.split()
    assert sorted(found) == [str(number) for number in range(4) for _ in range(50)]
