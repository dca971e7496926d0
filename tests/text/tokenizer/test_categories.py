"""The table of characters, against those that Python has."""

import unicodedata

import pytest

from wgpu_backend.text.tokenizer.categories import WHITE_SPACE, character_kind

# Characters that came to Unicode with version 16.0: no kind here, whatever Python knows.
LATER = "\u0897\u1b4e\u1c89\ua7cb\U000105c0\U00010d40\U0001cc00"


def test_every_character_is_what_python_says_it_is():
    for code in range(0x110000):
        kind, known = character_kind(code), unicodedata.category(chr(code))
        if known == "Cs":
            assert not kind
        elif kind and known != "Cn":  # Python's table may be older, or newer
            assert kind == known[0], hex(code)


@pytest.mark.parametrize("char", LATER, ids=ascii)
def test_later_characters_are_not_assigned(char):
    assert character_kind(ord(char)) == ""


def test_white_space_is_that_of_unicode():
    # Python adds the four separators of ASCII.
    spaces = {chr(code) for code in range(0x110000) if chr(code).isspace()}
    assert spaces - set(map(chr, range(0x1C, 0x20))) == WHITE_SPACE
