"""Modelfiles, read and written."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wgpu_backend.errors import StoreError
from wgpu_backend.files.store.modelfile import Modelfile, parse_modelfile, write_modelfile

TEXT = '''
# A comment
from ./model.gguf
PARAMETER temperature 0.5
PARAMETER num_ctx 2048
parameter stop "<|end|>"
PARAMETER stop User:
PARAMETER penalize_newline 1
PARAMETER mirostat 2
PARAMETER dry_sequence_breakers "\n"
PARAMETER use_mmap false
SYSTEM """You are
a "pirate".
"""
TEMPLATE "{{ .Prompt }}"
ADAPTER a.gguf
MESSAGE user Hi
MESSAGE assistant """Two
lines"""
LICENSE MIT
RENDERER qwen3
'''


def test_a_modelfile_is_read():
    made = parse_modelfile(TEXT)
    assert made == Modelfile(
        "./model.gguf",
        {
            "temperature": 0.5,
            "num_ctx": 2048,
            "stop": ["<|end|>", "User:"],
            "mirostat": 2,
            "dry_sequence_breakers": ["\n"],
            "use_mmap": False,
        },
        ["a.gguf"],
        ["MIT"],
        "{{ .Prompt }}",
        'You are\na "pirate".\n',
        [("user", "Hi"), ("assistant", "Two\nlines")],
    )
    assert parse_modelfile(write_modelfile(made)) == made


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\r")),
    st.text(st.sampled_from('"\n a\u2028\x0c\x85')),
)
@example('Say """so""" twice.', 'It ends in """\nand goes on.')
def test_what_is_written_is_read(text, other):
    made = Modelfile("base", {"stop": [other]}, system=text, messages=[("user", other)])
    assert parse_modelfile(write_modelfile(made)) == made


def test_what_else_ollama_reads():
    text = (
        "FROM\tstory\r\nPARAMETER\ttemperature\t0.5\r\n"
        'SYSTEM "text over\r\nseveral lines"\r\n# And:\r\nTEMPLATE a\u2028b\x0cc\x85d\r\n'
        'MESSAGE user "Two\r\nlines"'
    )
    assert parse_modelfile(text) == Modelfile(
        "story",
        {"temperature": 0.5},
        system="text over\nseveral lines",
        template="a\u2028b\x0cc\x85d",
        messages=[("user", "Two\nlines")],
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no FROM"),
        ("SYSTEM a", "no FROM"),
        ("FROM", "line 1: FROM has no value"),
        ("FROM a\nTOASTER b", "line 2: 'TOASTER' is not a command"),
        ("FROM a\nPARAMETER heat 5", "line 2: parameter heat: unknown, needs one of"),
        ("FROM a\nPARAMETER top_k x", "line 2: parameter top_k: 'x'"),
        ("FROM a\nPARAMETER use_mmap 7", "line 2: parameter use_mmap: '7'"),
        ("FROM a\nMESSAGE king Hi", "role 'king', needs one of"),
        ('FROM a\nSYSTEM """never', 'line 2: no closing """'),
        ('FROM a\nSYSTEM "never\nTEMPLATE b', 'line 2: no closing "'),
        ('FROM a\nSYSTEM """b"""\nTOASTER c', "line 3: 'TOASTER' is not a command"),
        ("FROM a\nPARAMETER temperature nan", "line 2: parameter temperature: 'nan'"),
        ("FROM a\nDRAFT b", "DRAFT is not supported"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text, message):
    with pytest.raises(StoreError, match=message):
        parse_modelfile(text)


def test_spaces_before_a_line_ends_stay():
    made = Modelfile("x", system="a \nb")
    assert parse_modelfile(write_modelfile(made)).system == "a \nb"


def test_many_lines_are_read_once():
    """Each looked at all that followed: 32,000 took 17 s."""
    many = range(40_000)
    said = "".join(f'MESSAGE user "{n}"\n' for n in many)
    assert len(parse_modelfile(f"FROM a\n{said}").messages) == len(many)
    marks = 'x"""\n' * len(many)
    assert parse_modelfile(f'FROM a\nSYSTEM """{marks}"""\n').system == marks
