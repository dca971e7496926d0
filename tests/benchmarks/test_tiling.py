"""Memory of a decoder by the picture's side: table and chart."""

from xml.etree import ElementTree

from benchmarks.tiling import plot, report

ROWS = [(64, 2048, 2048), (128, 8192, 2048)]


def test_a_row_for_each_side():
    assert report(ROWS, 3072.0).splitlines()[2:] == ["| 64 | 2 | 2 | 3 |", "| 128 | 8 | 2 | 3 |"]


def test_the_bound_is_dashed():
    drawn = ElementTree.tostring(ElementTree.fromstring(plot(ROWS, 3072.0)), "unicode")
    assert drawn.count("stroke-dasharray") == 1
    assert "stated bound" in drawn
