"""Random GBNF grammars and texts, and llama.cpp's verdicts on them.

``python -m tests.text.grammar.random_grammars FIRST COUNT`` compares many; it needs xllamacpp.
"""

from __future__ import annotations

import ctypes
import json
import random
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from tests.text.grammar.matchers import matcher_of, takes
from wgpu_backend.engine.loading import bundled
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.text.grammar.gbnf import Alt, Chars, GbnfError, Ref, Repeat, Seq, parse_gbnf
from wgpu_backend.text.grammar.gbnf_lark import write_lark
from wgpu_backend.text.tokenizer import Tokenizer

LETTERS = "abcé\n 1-"
NAMES = ["a", "A", "b-c", "start", "x1", "2", "WS"]
_BYTES = 256
_SECONDS = 20.0
_DEEPEST = 14


class RandomGrammar:
    """One grammar; `text` is its GBNF, which may be wrong."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        names = ["root", *self._draw.sample(NAMES, self._draw.randint(0, 4))]
        # Most rules refer only to later ones: left recursion is an error.
        pools = [names[i + 1 :] if self._flip(0.93) else names[1:] for i in range(len(names))]
        rules = [f"{n} ::= {self._body(n, pool)}" for n, pool in zip(names, pools, strict=True)]
        self.text = self._draw.choice(["\n", "\n\n", "\n# c\n"]).join(rules)

    def _flip(self, share: float) -> bool:
        return self._draw.random() < share

    def _body(self, name: str, pool: Sequence[str]) -> str:
        recurses = name != "root" and self._flip(0.35)
        return self._recursive(name, pool) if recurses else self._alternatives(pool, 2)

    def _recursive(self, name: str, pool: Sequence[str]) -> str:
        """Make a rule that refers to itself."""
        literal, letters = self._literal, self._class
        other, times = (
            self._draw.choice(pool or [name]),
            self._draw.choice(["*", "+", "{2}", "{1,}"]),
        )
        return self._draw.choice(
            [
                f"{literal()} {name} | {literal()}",
                f"{letters()} {name} |",
                f'"(" {name} ")" | {letters()}',
                f"{literal()} {name} {literal()} | {other}",
                f"{letters()} ({literal()} {name})?",
                f'{letters()} | "(" {name}{times} ")"',
                f"{literal()} | {letters()} {name}* {literal()}",
                f'{letters()} | "(" {other}{times} ")" | {literal()}',
            ]
        )

    def _alternatives(self, pool: Sequence[str], depth: int) -> str:
        count = self._draw.choice([1, 1, 2, 2, 3])
        return " | ".join(self._sequence(pool, depth) for _ in range(count))

    def _sequence(self, pool: Sequence[str], depth: int) -> str:
        count = self._draw.choice([0, 1, 1, 2, 2, 3])
        return " ".join(self._item(pool, depth) for _ in range(count))

    def _item(self, pool: Sequence[str], depth: int) -> str:
        kind = self._draw.random()
        if kind < 0.35:
            made = self._literal()
        elif kind < 0.55:
            made = self._class()
        elif kind < 0.8 and pool:
            made = self._draw.choice(pool)
        elif depth:
            begin, end = self._draw.choice(["", " ", "\n "]), self._draw.choice(["", " ", "\n"])
            made = f"({begin}{self._alternatives(pool, depth - 1)}{end})"
        else:
            made = self._literal()
        return made + self._times() + (self._times() if self._flip(0.06) else "")

    def _times(self) -> str:
        if self._flip(0.55):
            return ""
        least = self._draw.randint(0, 3)
        most = least + self._draw.randint(0, 3)
        exact = [f"{{{least}}}", f"{{{least},}}", f"{{{least},{most}}}", f"{{ {least} , {most} }}"]
        return self._draw.choice(["*", "*", "+", "?", "?", *exact])

    def _literal(self) -> str:
        text = self._draw.choices(LETTERS, k=self._draw.randint(0 if self._flip(0.05) else 1, 3))
        return '"' + "".join(map(self._spell, text)) + '"'

    def _spell(self, letter: str) -> str:
        code, plain = ord(letter), letter.replace("\n", "\\n")
        if not self._flip(0.15):
            return plain
        return self._draw.choice([plain, f"\\u{code:04x}", f"\\x{code:02X}", f"\\U{code:08x}"])

    def _class(self) -> str:
        if self._flip(0.15):
            return "."
        made = "^" if self._flip(0.25) else ""
        for _ in range(self._draw.randint(1, 3)):
            low, high = self._draw.choices(LETTERS, k=2)
            if low > high and self._flip(0.9):
                low, high = high, low
            escaped = {"\n": "\\n", "-": "\\-"}
            made += escaped.get(low, low)
            made += f"-{escaped.get(high, high)}" if self._flip(0.4) else ""
        return f"[{made}]"

    def texts(self) -> list[str]:
        """Texts of the grammar, texts that differ in a letter, and any texts."""
        try:
            rules = parse_gbnf(self.text, {}, _BYTES)
        except GbnfError:
            return []
        made = {self._damage(self._derive(rules, rules["root"], _DEEPEST)[:30]) for _ in range(9)}
        made |= {"".join(self._draw.choices(LETTERS, k=self._draw.randint(0, 6))) for _ in range(3)}
        return sorted(made)

    def _damage(self, text: str) -> str:
        if not text or not self._flip(0.35):
            return text
        at = self._draw.randrange(len(text))
        return text[:at] + self._draw.choice(["", self._draw.choice(LETTERS)]) + text[at + 1 :]

    def _derive(self, rules: Any, node: Any, depth: int) -> str:
        """Follow the rules at random; incomplete if it goes too deep."""
        derive = partial(self._derive, rules, depth=depth - 1)
        match node:
            case Chars() if node.ranges:
                fits = [c for c in LETTERS if any(a <= ord(c) <= b for a, b in node.ranges)]
                return self._draw.choice(fits or [chr(max(1, node.ranges[0][0]))])
            case _ if depth <= 0:
                return ""
            case Ref():
                return derive(rules[node.name])
            case Seq():
                return "".join(map(derive, node.items))
            case Alt():
                return derive(self._draw.choice(node.items))
            case Repeat():
                most = node.least + 3 if node.most is None else min(node.most, node.least + 3)
                count = self._draw.randint(node.least, most)
                return "".join(derive(node.item) for _ in range(count))
            case _:
                return ""


class LlamaCpp:
    """A process with llama.cpp's grammar sampler, which takes too long for some grammars.

    Attributes
    ----------
    answered : int
        Grammars that it took.
    """

    def __init__(self) -> None:
        self.answered = 0
        path = str(bundled())
        with open_gguf(path) as file:
            tokenizer = Tokenizer.of_file(file)
        pieces = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
        self._ids = [pieces.get(bytes([i]), -1) for i in range(_BYTES)]
        self._command = [sys.executable, "-m", __name__, "peer", path, str(min(tokenizer.eog_ids))]
        self._start()

    def _start(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def verdicts(self, grammar: str, texts: Sequence[str]) -> list[bool] | str:
        """Return whether each text is complete, or why there are no verdicts."""
        tokens = [[self._ids[byte] for byte in text.encode()] for text in texts]
        ask, answer = self._process.stdin, self._process.stdout
        assert ask is not None
        assert answer is not None
        try:
            ask.write(json.dumps([grammar, tokens]) + "\n")
            ask.flush()
            there = select.select([answer], [], [], _SECONDS)[0]
            if there and (line := answer.readline()):
                made = json.loads(line)
                self.answered += isinstance(made, list)
                return made
        except BrokenPipeError:
            pass
        self.__exit__()
        self._start()
        return "no answer"


def answer_requests(path: str, end: int) -> None:
    """Answer the requests of `LlamaCpp`: the process's own part."""
    import xllamacpp

    library = ctypes.CDLL(str(Path(xllamacpp.__file__).with_name("xllamacpp.abi3.so")))
    pointer, text = ctypes.c_void_p, ctypes.c_char_p

    class Parameters(ctypes.Structure):  # its size is an upper bound
        _fields_ = (("bytes", ctypes.c_ubyte * 512),)

    class Candidate(ctypes.Structure):
        _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))

    class Candidates(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.POINTER(Candidate)), ("size", ctypes.c_size_t),
            ("selected", ctypes.c_int64), ("is_sorted", ctypes.c_bool),
        )  # fmt: skip

    signatures = {
        "llama_model_default_params": (Parameters, ()),
        "llama_model_load_from_file": (pointer, (text, Parameters)),
        "llama_model_get_vocab": (pointer, (pointer,)),
        "llama_sampler_init_grammar": (pointer, (pointer, text, text)),
        "llama_sampler_apply": (None, (pointer, ctypes.POINTER(Candidates))),
        "llama_sampler_accept": (None, (pointer, ctypes.c_int32)),
        "llama_sampler_free": (None, (pointer,)),
    }
    for name, (result, arguments) in signatures.items():
        getattr(library, name).restype = result
        getattr(library, name).argtypes = arguments
    library.llama_backend_init()
    parameters = library.llama_model_default_params()
    model = library.llama_model_load_from_file(path.encode(), parameters)
    vocabulary = library.llama_model_get_vocab(model)

    def is_allowed(sampler: object, token: int) -> bool:
        one = (Candidate * 1)(Candidate(token, 0.0, 0.0))
        library.llama_sampler_apply(sampler, ctypes.byref(Candidates(one, 1, -1, False)))
        return one[0].logit == 0

    def is_complete(grammar: bytes, tokens: Sequence[int]) -> bool:
        sampler = library.llama_sampler_init_grammar(vocabulary, grammar, b"root")
        for token in [*tokens, end]:
            if not (fits := is_allowed(sampler, token)):
                break
            if token != end:
                library.llama_sampler_accept(sampler, token)
        library.llama_sampler_free(sampler)
        return fits

    for line in sys.stdin:
        grammar, texts = json.loads(line)
        source = grammar.encode()
        sampler = library.llama_sampler_init_grammar(vocabulary, source, b"root")
        made: object = "refused"
        if sampler:
            library.llama_sampler_free(sampler)
            made = [is_complete(source, tokens) for tokens in texts]
        print(json.dumps(made), flush=True)  # noqa: T201


def differences(seed: int, peer: LlamaCpp) -> Iterator[tuple[int, str, str, object]]:
    """Yield what differs from llama.cpp: the seed, the grammar, the text, and what is said here.

    llama.cpp also refuses a repetition of what may be empty, which is taken here.
    """
    made = RandomGrammar(seed)
    texts = made.texts()
    theirs = peer.verdicts(made.text, texts)
    try:
        matcher = matcher_of(write_lark(parse_gbnf(made.text, {}, _BYTES)))
    except GbnfError as error:
        if not isinstance(theirs, str):
            yield seed, made.text, "", str(error)
        return
    if isinstance(theirs, str):
        return
    for text, wanted in zip(texts, theirs, strict=True):
        if (found := takes(matcher, text)) != wanted:
            yield seed, made.text, text, found


def main() -> None:
    """Compare many, and print what differs."""
    first, count = map(int, sys.argv[1:])
    told: Counter[str] = Counter()
    with LlamaCpp() as peer:
        for seed in range(first, first + count):
            for each in differences(seed, peer):
                told["differ"] += 1
                print(*map(repr, each))  # noqa: T201
    print(f"{count} grammars: {dict(told)}")  # noqa: T201


if __name__ == "__main__":
    if sys.argv[1:2] == ["peer"]:
        answer_requests(sys.argv[2], int(sys.argv[3]))
    else:
        main()
