"""Compilation of grammars, and a model's tokens in the form that the compiler expects.

A grammar is compiled in a process of its own first, since some crash or hang the compiler. A chain
of five thousand rules overflows its stack; thirty patterns that must all hold keep it busy for
ever. A grammar that compiles in time is compiled a second time here, which takes milliseconds.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from wgpu_backend.errors import GrammarError, TokenizerError
from wgpu_backend.text.grammar.gbnf import token_names
from wgpu_backend.text.grammar.grammar import Grammar
from wgpu_backend.text.grammar.matcher import Matcher
from wgpu_backend.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Matchers at the beginning of a grammar that are kept to be copied.
_REMEMBERED = 16

# Processor time, not wall time: a busy machine must not reject a grammar.
SECONDS = 5.0
# The wall-clock limit, as a multiple of SECONDS.
_WAITS = 1.0 if sys.platform == "win32" else 20.0
MEMORY = 2 << 30
# The exit code of a process that the kernel ended at its processor-time limit.
_OVERTIME = -getattr(signal, "SIGXCPU", 0) or None
_TOO_LONG = "not compiled within {:g} s; make it simpler"
_CACHED = 256
_SCRIPT = Path(__file__).with_name("compile_alone.py")
# Limits of the compiler and, later, of each mask: one step takes 50 ms at worst.
LIMITS: dict[str, int | bool] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 500_000,
    "max_items_in_row": 2_000,
    # A state takes 1 to 2 kB.
    "max_lexer_states": 30_000,
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


@lru_cache(_CACHED)
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
    # Isolated and without site-packages: it starts faster, and the environment cannot change it.
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


class GrammarVocabulary:
    """A maker of matchers for one model's tokens; safe to use from several threads.

    The compiler's table of tokens is made on first use: for 128,000 tokens that takes about a
    second.

    Parameters
    ----------
    tokenizer : Tokenizer
        The model's tokenizer.
    rows : int
        Number of logits of a row, which may exceed the number of tokens.
    """

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        self.rows = rows
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._library: LLTokenizer | None = None
        self._begun: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def matcher(self, grammar: Grammar) -> Matcher:
        """Create a matcher at the beginning of a grammar.

        Raises
        ------
        GrammarError
            The grammar cannot be used, see `check_grammar`; or llguidance is not installed.
        """
        # Outside the lock: this takes up to some seconds, and other threads can go on meanwhile.
        form = check_grammar(grammar, self._collect_tokens(grammar))
        with self._lock:
            if grammar not in self._begun:
                self._begun[grammar] = self._compile(form)
            self._begun.move_to_end(grammar)
            if len(self._begun) > _REMEMBERED:
                self._begun.popitem(last=False)
            # The kept matcher stays at the beginning of its grammar.
            return Matcher(self._begun[grammar].deep_copy(), self.rows)

    def _collect_tokens(self, grammar: Grammar) -> Tokens:
        """Collect the tokens that GBNF refers to; other kinds do not depend on the vocabulary."""
        if grammar.kind != "gbnf" or "<" not in grammar.text:
            return Tokens()
        named: list[tuple[str, int]] = []
        for text in sorted(token_names(grammar.text)):
            ids = self._tokenizer.encode(text, add_special=False, parse_special=True)
            # A text that becomes one token names it, whatever its spelling in the file.
            token = ids[0] if len(ids) == 1 else self._tokenizer.token_id(text)
            named += [] if token is None else [(text, token)]
        return Tokens(tuple(named), self._never, self._tokenizer.vocab_size)

    @cached_property
    def _never(self) -> str:
        """List tokens that end an answer or have no text, and rows that are not tokens."""
        known = self._tokenizer
        count = known.vocab_size
        silent = (token for token in range(count) if not known.token_bytes(token))
        return _as_ranges({*known.eog_ids, *silent, *range(count, self.rows)})

    def _compile(self, form: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits: Any = LIMITS
        return LLMatcher(self._get_library(), form, log_level=0, limits=LLParserLimits(**limits))

    def _get_library(self) -> LLTokenizer:
        if self._library is None:
            self._library = self._make_library()
        return self._library

    def _make_library(self) -> LLTokenizer:
        library_folder()
        from llguidance import LLTokenizer, TokenizerWrapper

        source = _Source(self._tokenizer, self.rows)
        try:
            return LLTokenizer(TokenizerWrapper(source), eos_token=source.ends)
        except ValueError as error:
            raise GrammarError(f"grammar: the vocabulary cannot be used: {error}") from None


class _Source:
    """A tokenizer in the form that the compiler expects."""

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        count = tokenizer.vocab_size
        pieces = [tokenizer.token_bytes(token) for token in range(count)]
        # Rows after the tokens cannot be chosen. The last entry is not a logit: it is the end token
        # of a vocabulary that has none.
        self.tokens: Sequence[bytes] = [*pieces, *[b""] * (rows - count), b"<no end>"]
        self.ends = sorted(tokenizer.eog_ids) or [rows]
        self.eos_token_id = self.ends[0]
        self.bos_token_id = tokenizer.bos_id
        named = [t for t in range(count) if tokenizer.is_control(t) or _is_tag(pieces[t])]
        self.special_token_ids = sorted({*named, *self.ends, rows})
        self._tokenizer = tokenizer
        self._places: dict[bytes, int] = {}
        self._longest = 0

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the tokens of a text that follows other text; they spell it to the byte."""
        given = text if isinstance(text, bytes) else text.encode()
        try:
            ids = self._tokenizer.encode_further(given.decode())
        except (UnicodeDecodeError, TokenizerError):
            return self._greedy(given)
        same = b"".join(self.tokens[token] for token in ids) == given
        return ids if same else self._greedy(given)

    def _greedy(self, text: bytes) -> list[int]:
        """Return the longest tokens that fit, where the tokenizer would change the text.

        They end before a byte that no token has; the answer fails there.
        """
        if not self._places:
            special = {*self.special_token_ids}
            for token, piece in enumerate(self.tokens):
                if token not in special and piece:
                    self._places.setdefault(piece, token)
            self._longest = max(map(len, self._places), default=0)
        ids: list[int] = []
        at = 0
        while at < len(text):
            ends = range(min(at + self._longest, len(text)), at, -1)
            end = next((end for end in ends if text[at:end] in self._places), None)
            if end is None:
                break
            ids.append(self._places[text[at:end]])
            at = end
        return ids


def _as_ranges(numbers: Iterable[int]) -> str:
    """Write numbers as ``1,3-7``."""
    ends: list[list[int]] = []
    for number in sorted(numbers):
        if ends and ends[-1][1] == number - 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ends)


def tag_id(tokenizer: Tokenizer, text: str) -> int | None:
    """Return the id of a token that no answer's text can spell, or None if it can."""
    token = tokenizer.token_id(text)
    if token is None:
        return None
    return token if tokenizer.is_control(token) or _is_tag(text.encode()) else None


def _is_tag(piece: bytes) -> bool:
    """Return whether an answer's text must not contain this token, such as ``<|message|>``."""
    return len(piece) > 4 and piece.startswith(b"<|") and piece.endswith(b"|>")
