"""Stop texts are found wherever text is cut, and nothing of them is passed on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wgpu_backend.engine.stop_texts import StopTexts

few = st.text("ab<", max_size=12)


@given(few, st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3), st.data())
def test_cuts_change_nothing(text, stops, data):
    """The text before the stop text that is complete first; of those, the one that begins first."""
    ends = sorted((text.find(s) + len(s), text.find(s)) for s in stops if s in text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, pieces = StopTexts(stops), StopTexts(stops)
    letter_by_letter = "".join(map(whole.push, text)) + whole.flush()
    given = "".join(map(pieces.push, parts)) + pieces.flush()
    assert (pieces.found is None) == (whole.found is None) == (not ends)
    if not ends:
        assert given == letter_by_letter == text
    else:
        assert whole.found in stops
        assert text.startswith(given + pieces.found)


@pytest.mark.parametrize(
    ("stops", "parts", "given", "found"),
    [
        (["END"], ["so E", "N", "D more"], "so ", "END"),
        (["END"], ["so E", "NOT"], "so ENOT", None),
        (["b", "abc"], ["a", "bc"], "", "abc"),
        (["</s>", "</"], ["x<", "/s>"], "x", "</s>"),
        (["aab"], ["aaa", "b"], "a", "aab"),
    ],
)
def test_the_first_stop_text_ends_it(stops, parts, given, found):
    texts = StopTexts(stops)
    assert "".join(map(texts.push, parts)) + texts.flush() == given
    assert texts.found == found
