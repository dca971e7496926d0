"""Compiles one grammar in a process that may hang or die of it; nothing imports this file.

It reads the folder of the compiler's package, limits, a kind and a source as JSON, on one line,
and writes the compiler's form of the grammar, or what is wrong with it. Of the package it imports
GBNF's translation alone, so that it starts in a tenth of a second.
"""

import json
import math
import re
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

_STACK = 1 << 20  # an eighth of what threads have on Linux: what passes here has room there


def _limit(nbytes: int, seconds: float) -> None:
    """Limit memory and processor time; SIGXCPU ends the process that takes more of the latter."""
    try:
        import resource
    except ImportError:  # Windows has none; its caller waits for as long and no longer
        return
    for kind, most in ((resource.RLIMIT_AS, nbytes), (resource.RLIMIT_CPU, math.ceil(seconds))):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))


def _gbnf(source: str, given: dict[str, Any]) -> str:
    """GBNF as Lark; the package's own `__init__` is left out."""
    here = Path(__file__).parent
    for name, folder in (("wgpu_backend", here.parent), ("wgpu_backend.text.grammar", here)):
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(folder)]
    from wgpu_backend.text.grammar.gbnf import parsed
    from wgpu_backend.text.grammar.gbnf_lark import lark

    return lark(parsed(source, given["named"], given["count"]), given["never"])


def _form(kind: str, source: str) -> str:
    from llguidance import LLMatcher

    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(source)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    return LLMatcher.grammar_from_lark(source)


_IDS = re.compile(r"<\[\^?[0-9,-]+\]>")  # tokens of a vocabulary that is not known here


class _Bytes:
    """A vocabulary of all bytes and an end."""

    eos_token_id, bos_token_id = 256, None
    tokens = (*(bytes([i]) for i in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def compiled(given: dict[str, Any]) -> dict[str, str]:
    """Form of a grammar, or an error."""
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

    kind, source, limits = given["kind"], given["source"], given["limits"]
    if kind == "gbnf":
        kind, source = "lark", _gbnf(source, given)
    form = _form(kind, source)
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()))
    known = form if kind != "lark" else _form(kind, _IDS.sub("<[256]>", source))
    matcher = LLMatcher(tokenizer, known, log_level=0, limits=LLParserLimits(**limits))
    if not matcher.is_error():
        matcher.compute_bitmask()
    stuck = matcher.is_stopped() and not matcher.is_accepting()
    if stuck and matcher.get_error().partition("\n")[0] in ("", "NoExtensionBias"):
        return {"error": "no text fits it"}
    if matcher.is_error():
        return {"error": matcher.get_error()}
    return {"form": form}


def _answer(given: dict[str, Any], answer: dict[str, str]) -> None:
    try:
        answer |= compiled(given)
    except RecursionError:
        answer["error"] = "nested too deep"
    except BaseException as error:  # the library's panics are none of Exception
        answer["error"] = str(error) or type(error).__name__


def main() -> None:
    """Answer one line."""
    given = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = [*given["path"], *sys.path]
    _limit(given["memory"], given["seconds"])
    threading.stack_size(_STACK)
    answer: dict[str, str] = {}
    thread = threading.Thread(target=_answer, args=(given, answer))
    thread.start()
    thread.join()
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
