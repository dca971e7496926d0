"""Compilation of a grammar in a process of its own, since some grammars crash or hang the compiler.

A chain of five thousand rules overflows its stack; thirty patterns that must all hold keep it busy
for ever. A grammar that compiles in time is compiled a second time here, which takes milliseconds.
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

# Processor time, not wall time: a busy machine must not reject a grammar.
SECONDS = 5.0
# The wall-clock limit, as a multiple of SECONDS.
_WAITS = 1.0 if sys.platform == "win32" else 20.0
MEMORY = 2 << 30
# The exit code of a process that the kernel ended at its processor-time limit.
_OVERTIME = -getattr(signal, "SIGXCPU", 0) or None
_TOO_LONG = "not compiled within {:g} s; make it simpler"
_REMEMBERED = 256
_SCRIPT = Path(__file__).with_name("compile_alone.py")
# Limits of the compiler and, later, of each mask: one step takes 50 ms at worst.
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
    """Return the folder that contains llguidance.

    Raises
    ------
    GrammarError
        llguidance is not installed.
    """
    spec = find_spec("llguidance")
    if spec is None or spec.origin is None:
        raise GrammarError('grammar: needs the package llguidance; pip install "llguidance>=1.9"')
    return str(Path(spec.origin).parents[1])


@dataclass(frozen=True, slots=True)
class Tokens:
    """The vocabulary's tokens that a GBNF grammar can refer to.

    Attributes
    ----------
    named : tuple
        Texts of tokens that the grammar names, and their ids.
    never : str
        Ids and ranges, separated by commas, of tokens that no answer contains.
    count : int
        Number of tokens.
    """

    named: tuple[tuple[str, int], ...] = ()
    never: str = ""
    count: int = 0


def check_grammar(grammar: Grammar, tokens: Tokens) -> str:
    """Compile a grammar in a separate process and return the compiler's form of it.

    Raises
    ------
    GrammarError
        The grammar is invalid, takes too long or crashes the compiler, or llguidance is missing.
    """
    answer = _compile(grammar, tokens)
    if "form" in answer:
        return answer["form"]
    raise _make_error(grammar, answer.get("error", "it cannot be compiled"))


@lru_cache(_REMEMBERED)
def _compile(grammar: Grammar, tokens: Tokens) -> dict[str, str]:
    """Return the compiler's answer; a failure to start it is not cached."""
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
    return _run_compiler(grammar, json.dumps(given).encode() + b"\n")


def _run_compiler(grammar: Grammar, line: bytes) -> dict[str, str]:
    command = [sys.executable, "-I", "-S", str(_SCRIPT)]
    try:
        done = subprocess.run(command, input=line, capture_output=True, timeout=SECONDS * _WAITS)
    except subprocess.TimeoutExpired:
        raise _make_error(grammar, _TOO_LONG.format(SECONDS)) from None
    except OSError as error:
        why = f"no process to compile it in: {error.strerror or error}"
        raise _make_error(grammar, why) from None
    if done.returncode == _OVERTIME:
        raise _make_error(grammar, _TOO_LONG.format(SECONDS))
    if done.returncode or not done.stdout:
        return {"error": "it crashes the compiler; nest it less and make it smaller"}
    return cast("dict[str, str]", json.loads(done.stdout))


def _make_error(grammar: Grammar, why: str) -> GrammarError:
    names = {"json_schema": "JSON schema", "regex": "regex"}
    subject = names.get(grammar.kind, f"{grammar.kind} grammar")
    return GrammarError(f"{subject}: {shorten_message(why)}")


def shorten_message(message: str) -> str:
    """Return the compiler's message as one short line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("error:")), "")
    first = lines[0] if lines else "it cannot be compiled"
    remedy = ""
    if first.startswith(("Unimplemented keys", "Unknown format")):
        remedy = "; answers cannot be kept to that, so leave it out and check them for it yourself"
    return f"{first[:160]}{' ' + reason[:120] if reason else ''}{remedy}"
