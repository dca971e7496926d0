"""A script that compiles one grammar in a process that may hang or crash; nothing imports it.

It reads the folder of the compiler's package, limits, a kind and a source as one line of JSON, and
writes the compiler's form of the grammar or an error message. It imports only the GBNF translation
of this package, so that it starts in a tenth of a second.
"""

import json
import math
import re
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

# An eighth of a thread's stack on Linux: a grammar that compiles here fits into the stack there.
_STACK = 1 << 20


def _limit(nbytes: int, seconds: float) -> None:
    """Limit memory and processor time; SIGXCPU ends a process that exceeds the latter."""
    try:
        import resource
    except ImportError:
        # Windows has no resource module; the parent process limits the time instead.
        return
    for kind, most in ((resource.RLIMIT_AS, nbytes), (resource.RLIMIT_CPU, math.ceil(seconds))):
        _, hard = resource.getrlimit(kind)
        # A hard limit below 0 is none; a soft limit above the hard one would be an error.
        resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))


def _translate_gbnf(source: str, given: dict[str, Any]) -> str:
    """Translate GBNF to Lark without running the package's own ``__init__``."""
    here = Path(__file__).parent
    packages = {
        "wgpu_backend": here.parents[1],
        "wgpu_backend.text": here.parent,
        "wgpu_backend.text.grammar": here,
    }
    # Empty packages in place of the real ones, so that the process starts in a tenth of a second.
    for name, folder in packages.items():
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(folder)]
    from wgpu_backend.text.grammar.gbnf import parse_gbnf
    from wgpu_backend.text.grammar.gbnf_lark import write_lark

    return write_lark(parse_gbnf(source, given["named"], given["count"]), given["never"])


def _make_form(kind: str, source: str) -> str:
    from llguidance import LLMatcher

    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(source)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    return LLMatcher.grammar_from_lark(source)


# Tokens of the model's vocabulary, which is not known in this process.
_IDS = re.compile(r"<\[\^?[0-9,-]+\]>")


class _Bytes:
    """A vocabulary of all bytes and an end token."""

    eos_token_id, bos_token_id = 256, None
    tokens = (*(bytes([i]) for i in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def compile_grammar(given: dict[str, Any]) -> dict[str, str]:
    """Return the compiler's form of a grammar, or an error."""
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

    kind, source, limits = given["kind"], given["source"], given["limits"]
    if kind == "gbnf":
        kind, source = "lark", _translate_gbnf(source, given)
    form = _make_form(kind, source)
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()))
    known = form if kind != "lark" else _make_form(kind, _IDS.sub("<[256]>", source))
    matcher = LLMatcher(tokenizer, known, log_level=0, limits=LLParserLimits(**limits))
    if not matcher.is_error():
        matcher.compute_bitmask()
    stuck = matcher.is_stopped() and not matcher.is_accepting()
    if stuck and matcher.get_error().partition("\n")[0] in ("", "NoExtensionBias"):
        return {"error": "no text fits it"}
    if matcher.is_error():
        return {"error": matcher.get_error()}
    return {"form": form}


def _try_compile(given: dict[str, Any], answer: dict[str, str]) -> None:
    try:
        answer |= compile_grammar(given)
    except RecursionError:
        answer["error"] = "nested too deep"
    except BaseException as error:
        # The library's panics do not derive from Exception.
        answer["error"] = str(error) or type(error).__name__


def main() -> None:
    """Read one request from stdin and write its answer to stdout."""
    given = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = [*given["path"], *sys.path]
    _limit(given["memory"], given["seconds"])
    threading.stack_size(_STACK)
    answer: dict[str, str] = {}
    thread = threading.Thread(target=_try_compile, args=(given, answer))
    thread.start()
    thread.join()
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
