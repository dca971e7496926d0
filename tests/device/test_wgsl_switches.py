"""Switches in pieces do what they did whole."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.device.kernels import body
from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding
from wgpu_backend.device.device import Device
from wgpu_backend.device.wgsl.switches import PIECE, split_switches

CASES = 100


def switch(clauses: str, selector: str = "a[0]") -> str:
    return f"switch {selector} {{\n{clauses}\n}}"


def cases(count: int, template: str = "case {n}: {{ a[1] = {n} * 7; }}") -> str:
    return "\n".join(template.format(n=n) for n in range(count))


def test_a_short_switch_stays_as_it_is():
    text = switch(cases(PIECE - 1) + " default: { }  // and a comment")
    assert split_switches(text) == text


@pytest.mark.parametrize(
    "text",
    ["switch", "switch a[0] {", "switch a[0] { case 1: {", switch(cases(CASES)), "switch x { ; }",
     switch(cases(CASES) + "default: { } default: { }")],
)  # fmt: skip
def test_what_is_no_switch_is_left_to_the_compiler(text: str):
    assert split_switches(text) == text


def test_pieces_are_short_and_lines_stay():
    text = f"// switch x {{ /*\n{switch(cases(CASES) + chr(10) + 'default: {' + chr(10) + '}')}\n;"
    split = split_switches(text)
    assert split.count("\n") == text.count("\n")
    for piece in re.findall(r"switch split_switch_\d+ {.*?default", split, re.DOTALL):
        assert piece.count("case") <= PIECE
    lines, before = split.split("\n"), text.split("\n")
    assert all(f"a[1] = {n} * 7;" in lines[before.index(f"case {n}: {{ a[1] = {n} * 7; }}")]
               for n in range(CASES))  # fmt: skip


def results(device: Device, statements: str, before: str, selectors: range) -> list[int]:
    """`a[0]` after a run for each selector in `a[0]`, and `a[1]` to `a[3]` behind it."""
    pipeline = device.pipeline(body(statements, before))
    found: list[int] = []
    for selector in selectors:
        a = device.buffer(64, purpose="activations")
        device.write(a, np.asarray([selector, 0, 0, 0], "i4"))
        program = device.program([Dispatch(pipeline, (Binding(a),), (1, 1, 1))])
        program.replay()
        found.append(int(np.frombuffer(device.read(a, 4, 4), "i4")[0]))
        program.close()
        a.release()
    return found


SELECTORS = range(-2, CASES + 10, 3)
LABELS = "case {n}, {n} + 1000: {{ if (a[0] == 51) {{ break; }} a[1] += {n} * 7; a[0] = 3; }}"


def label(selector: int) -> int:
    if selector == 51:
        return 0
    return selector * 7 if 0 <= selector < CASES else -1


@pytest.mark.slow
@pytest.mark.gpu
def test_a_long_switch_runs_one_case(device: Device):
    text = switch(cases(50, LABELS) + "case 777, default: { a[1] -= 1; }\n"
                  + cases(CASES, LABELS).split("\n", 50)[50])  # fmt: skip
    assert results(device, text, "", SELECTORS) == [label(s) for s in SELECTORS]


@pytest.mark.gpu
def test_a_long_switch_may_return_from_a_function(device: Device):
    inner = switch(cases(CASES, "case {n}: {{ return {n} * 7; }}") + "default: { return -1; }", "x")
    before = f"fn f(x: i32) -> i32 {{ {inner} }}"
    wanted = [s * 7 if 0 <= s < CASES else -1 for s in SELECTORS]
    assert results(device, "a[1] = f(a[0]);", before, SELECTORS) == wanted


@pytest.mark.gpu
def test_a_long_switch_in_a_case_of_another(device: Device):
    inner = switch(cases(CASES) + "default: { a[1] = -1; }")
    outer = switch(cases(CASES, "case 9{n:03}: {{ }}") + f"default: {{ {inner} }}")
    wanted = [s * 7 if 0 <= s < CASES else -1 for s in range(1, 100, 17)]
    assert results(device, outer, "", range(1, 100, 17)) == wanted
