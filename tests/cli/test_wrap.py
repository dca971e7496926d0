"""Lines broken between words, whatever pieces they come in."""

import pytest

from wgpu_backend.cli.console import remark
from wgpu_backend.cli.reply import Wrapper

TEXT = "the quick  brown fox\n\njumps over the extraordinarily lazy dog and 狐狸 runs "


def wrapped(text: str, width: int, size: int) -> str:
    wrapper = Wrapper((lambda: width) if width else None)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return "".join(map(wrapper.push, pieces)) + wrapper.flush()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("width", [8, 10, 20, 40])
def test_pieces_do_not_matter(width: int, size: int) -> None:
    assert wrapped(TEXT, width, size) == wrapped(TEXT, width, 1)


@pytest.mark.parametrize("width", [16, 20, 40])
def test_no_line_is_longer_than_the_width(width: int) -> None:
    assert max(map(len, wrapped(TEXT, width, 4).split("\n"))) <= width


def test_words_and_their_order_stay() -> None:
    assert wrapped(TEXT, 10, 3).split() == TEXT.split()


def test_a_word_that_fits_exactly_stays_on_its_line() -> None:
    assert wrapped("abcd efg", 8, 1) == "abcd efg"
    assert wrapped("abcd efgh", 8, 1) == "abcd\nefgh"


def test_wide_characters_count_twice() -> None:
    assert wrapped("abc 狐狸", 7, 1) == "abc\n狐狸"


@pytest.mark.parametrize(("before", "after"), [(40, 12), (12, 40)])
def test_lines_follow_a_window_that_changes(before: int, after: int) -> None:
    width = before
    wrapper = Wrapper(lambda: width)
    text = "the quick brown fox jumps over the lazy dog and runs away again. " * 3
    shown = ""
    for number, word in enumerate(text.split()):
        width = before if number < 18 else after
        shown += wrapper.push(f"{word} ")
        if number == 17:
            at = len(shown)
    shown += wrapper.flush()
    first, last = shown[:at].split("\n"), shown[at:].split("\n")[1:]
    assert before - 8 < max(map(len, first)) <= before
    assert after - 8 < max(map(len, last)) <= after


def test_without_a_width_text_passes_as_it_is() -> None:
    assert wrapped(TEXT, 0, 5) == TEXT


def test_what_is_said_beside_the_answer_breaks_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "known are temperature, top_k and a/path/that/is/longer/than/the/terminal/is/wide"
    remark(text)
    assert capsys.readouterr().err == f"{text}\n"  # nobody looks
    monkeypatch.setattr("wgpu_backend.cli.console.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "24")
    remark(f"{text}\n  kept")
    assert capsys.readouterr().err == (
        "known are temperature,\ntop_k and\n"
        "a/path/that/is/longer/than/the/terminal/is/wide\n  kept\n"
    )
