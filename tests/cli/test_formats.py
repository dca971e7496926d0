"""`run --format` and `run --grammar`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

ASKED = ("run", "story", "A fox", "--device", "cpu", "--seed", "1", "--num-predict", "60")
SCHEMA = '{"enum": ["red", "green"]}'


def test_an_answer_is_json_of_a_schema_or_a_text_of_a_grammar(cli: Cli, tmp_path: Path) -> None:
    schema, gbnf, lark = (tmp_path / name for name in ("a.json", "b.gbnf", "c.lark"))
    schema.write_text(SCHEMA)
    gbnf.write_text('root ::= ("yes" | "no") " indeed"')
    lark.write_text("start: /[a-c]{3}/")
    assert json.loads(cli(*ASKED, "--format", str(schema)).out) in ("red", "green")
    assert json.loads(cli(*ASKED, "--format", SCHEMA).out) in ("red", "green")
    assert cli(*ASKED, "--grammar", str(gbnf)).out.strip() in ("yes indeed", "no indeed")
    assert re.fullmatch("[a-c]{3}", cli(*ASKED, "--grammar", str(lark)).out.strip())
    assert cli(*ASKED, "--format", "json").out.startswith("{")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--format", "no.json"), "--format: no.json: no such file"),
        (("--format", "{"), "JSON schema: not JSON"),
        (("--grammar", "."), "a directory, needs"),
        (("--format", "json", "--grammar", "x"), "needs one of the two"),
    ],
)
def test_what_cannot_be_used_is_told_before_the_model_is_loaded(
    cli: Cli, words: tuple[str, ...], message: str
) -> None:
    done = cli(*ASKED, *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
