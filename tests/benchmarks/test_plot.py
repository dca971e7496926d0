"""Charts: places on logarithmic axes, and text that is well-formed XML."""

from xml.etree import ElementTree

import pytest

from benchmarks.plot import Axis, Series, Spread, axis, lines, number, picture, ratios

SVG = "{http://www.w3.org/2000/svg}"


def test_an_axis_is_logarithmic():
    scale = Axis(1, 100, 0, 200)
    assert [scale.at(1), scale.at(10), scale.at(100)] == pytest.approx([0, 100, 200])


def test_ticks_are_round_and_few():
    assert Axis(1, 32768, 0, 1, 2).ticks() == [4.0**i for i in range(8)]
    assert Axis(0.7, 30, 0, 1).ticks() == [1, 2, 5, 10, 20]
    assert Axis(0.001, 1e6, 0, 1).ticks() == [10.0**i for i in range(-3, 7)][::2]


def test_one_value_alone_has_an_axis():
    assert 0 < axis([5.0], 0, 100).at(5.0) < 100


@pytest.mark.parametrize(
    ("value", "text"), [(0.05, "0.05"), (20, "20"), (4096, "4k"), (1e6, "1e+06")]
)
def test_numbers_take_few_letters(value, text):
    assert number(value) == text


def test_every_point_of_a_line_is_drawn():
    points = [(1.0, 2.0), (2.0, 3.0), (4.0, 8.0)]
    panel = lines("a < b", "x & y", "y", [Series("s", points), Series("t", points, dashed=True)])
    root = ElementTree.fromstring(picture([panel, panel, panel]))
    assert len(root.findall(f".//{SVG}circle")) == 9
    assert len(root.findall(f".//{SVG}polyline")) == 6
    assert "a < b" in {text.text for text in root.iter(f"{SVG}text")}
    assert (root.get("width"), root.get("height")) == ("880", "640")


def test_nothing_measured_is_said():
    assert "nothing measured" in lines("t", "x", "y", [])


def test_a_ratio_of_two_is_right_of_one_with_its_whisker():
    panel, height = ratios("t", "ratio", [Spread("m", "peer", 1.5, 2.0, 3.0)])
    root = ElementTree.fromstring(picture([panel], 660, height))
    (mark,) = root.iter(f"{SVG}circle")
    whiskers = [each for each in root.iter(f"{SVG}line") if each.get("stroke-width") == "2"]
    (whisker,) = whiskers
    ones = [t for t in root.iter(f"{SVG}text") if t.text == "1×"]
    assert float(ones[0].get("x")) < float(whisker.get("x1")) < float(mark.get("cx"))
    assert float(mark.get("cx")) < float(whisker.get("x2"))
