"""Grammars are compiled in a process of their own first: some crash or hang the compiler.

A chain of five thousand rules overflows its stack, and thirty patterns that are all to hold keep it
busy for ever. What comes back in time is compiled here a second time, which takes milliseconds.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from wgpu_backend.errors import GrammarError
from wgpu_backend.text.grammar.grammar import Grammar

SECONDS = 5.0  # of processor time: a busy machine refuses no grammar
_WAITS = 1.0 if sys.platform == "win32" else 20.0  # times as long on the clock, at the most
MEMORY = 2 << 30
_OVERTIME = -getattr(signal, "SIGXCPU", 0) or None  # the exit code of a process that it ended
_TOO_LONG = "not compiled within {:g} s; make it simpler"
_REMEMBERED = 256
_SCRIPT = Path(__file__).with_name("compile_alone.py")
# Steps of the compiler and, later, of each mask: a step's worst is some 50 ms.
LIMITS: dict[str, int | bool] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 500_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 30_000,  # of 1 to 2 kB each
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}


def library_folder() -> str:
    """Folder that has llguidance.

    Raises
    ------
    GrammarError
        It is not installed.
    """
    spec = find_spec("llguidance")
    if spec is None or spec.origin is None:
        raise GrammarError('grammar: needs the package llguidance; pip install "llguidance>=1.9"')
    return str(Path(spec.origin).parents[1])


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a grammar in GBNF means by tokens of one vocabulary.

    Attributes
    ----------
    named : tuple
        Texts of tokens that the grammar names, with their ids.
    never : str
        Ids and ranges, with commas, of tokens that no answer has.
    count : int
        Tokens that there are.
    """

    named: tuple[tuple[str, int], ...] = ()
    never: str = ""
    count: int = 0


def checked(grammar: Grammar, tokens: Tokens) -> str:
    """Form of a grammar that the compiler takes without harm.

    Raises
    ------
    GrammarError
        It is wrong, takes too long, or crashes the compiler; or llguidance is missing.
    """
    answer = _compiled(grammar, tokens)
    if "form" in answer:
        return answer["form"]
    raise _wrong(grammar, answer.get("error", "it cannot be compiled"))


@lru_cache(_REMEMBERED)
def _compiled(grammar: Grammar, tokens: Tokens) -> dict[str, str]:
    """What the compiler answers; where it does not, that is not remembered."""
    given = {
        "kind": grammar.kind,
        "source": grammar.source(),
        "limits": LIMITS,
        "memory": MEMORY,
        "seconds": SECONDS,
        "path": [library_folder()],
        "named": dict(tokens.named),
        "never": tokens.never,
        "count": tokens.count,
    }
    return _answer(grammar, json.dumps(given).encode() + b"\n")


def _answer(grammar: Grammar, line: bytes) -> dict[str, str]:
    command = [sys.executable, "-I", "-S", str(_SCRIPT)]
    try:
        done = subprocess.run(command, input=line, capture_output=True, timeout=SECONDS * _WAITS)
    except subprocess.TimeoutExpired:
        raise _wrong(grammar, _TOO_LONG.format(SECONDS)) from None
    except OSError as error:
        why = f"no process to compile it in: {error.strerror or error}"
        raise _wrong(grammar, why) from None
    if done.returncode == _OVERTIME:
        raise _wrong(grammar, _TOO_LONG.format(SECONDS))
    if done.returncode or not done.stdout:
        return {"error": "it crashes the compiler; nest it less and make it smaller"}
    return cast("dict[str, str]", json.loads(done.stdout))


def _wrong(grammar: Grammar, why: str) -> GrammarError:
    names = {"json_schema": "JSON schema", "regex": "regex"}
    return GrammarError(f"{names.get(grammar.kind, f'{grammar.kind} grammar')}: {told(why)}")


def told(message: str) -> str:
    """What the compiler says, in one short line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("error:")), "")
    first = lines[0] if lines else "it cannot be compiled"
    remedy = ""
    if first.startswith(("Unimplemented keys", "Unknown format")):
        remedy = "; answers cannot be kept to that, so leave it out and check them for it yourself"
    return f"{first[:160]}{' ' + reason[:120] if reason else ''}{remedy}"
