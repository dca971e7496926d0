"""Random tokenizer.json files: every kind of step that the format has, with random settings.

``python -m tests.files.huggingface.random_tokenizers FIRST COUNT TEXTS`` compares many.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from wgpu_backend.errors import TokenizerError
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tokens import tokenizer_keys
from wgpu_backend.text.tokenizer import Tokenizer
from wgpu_backend.text.tokenizer.pieces import ALPHABET

LETTERS = "aehlorstuw AEHTÜéüß你好ñ1 23.,!?'_-\n\t"
PARTS = [
    *"aehlorstuwAEHTÜéüß你好ñ123.,!?'_-\n\t",
    " ",
    "  ",
    "the",
    "hello",
    " world",
    "He",
    "is",
    "e\u0301",
    "u\u0308",
    "ＡＢ",
    "½",
    "ﬁ",
    "İ",
    "ǆ",
    "가",
    "각",
    "😀",
    "👨‍👩‍👧",
    "\u00a0",
    "\u2009",
    "\u3000",
    "\r\n",
    "▁",
    "▁the",
    "##s",
    "</w>",
    "<0x41>",
    "Ġ",
    "\0",
    "\u200b",
    "\ufeff",
    "مرحبا",
    "हिन्दी",
    "ไทย",
    "<s>",
    "</s>",
    "<unk>",
    "<|user|>",
    "<|end|>",
    "<tool>",
    "[MASK]",
    "end",
    "\ufffd",
    "don't",
    "I'm",
    "3.14",
    "a_b",
]
ADDED = [
    "<s>",
    "</s>",
    "<|user|>",
    "<|end|>",
    "<tool>",
    "[MASK]",
    "the",
    "end",
    "é",
    " x",
    "He",
    "ﬁ",
]
BEHAVIOURS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
SCHEMES = ["always", "first", "never"]


class RandomFile:
    """One file; `json` is what it says."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.bytes = self.draw.random() < 0.35
        model = getattr(self, "_" + self.draw.choice(["bpe", "bpe", "words", "unigram", "level"]))()
        self.json: dict[str, Any] = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self._added(model),
            "normalizer": self._some(self._normaliser, "normalizers", 0.7),
            "pre_tokenizer": self._cuts(),
            "post_processor": None,
            "decoder": self._decoder(model),
            "model": model,
        }
        self.json["post_processor"] = self._processor()

    def flip(self, share: float = 0.5) -> bool:
        return self.draw.random() < share

    def text(self) -> str:
        """A text of the parts."""
        return "".join(self.draw.choices(PARTS, k=self.draw.randint(0, 14)))

    def _some(self, step: Any, name: str, share: float) -> Any:
        if not self.flip(share):
            return None
        count = self.draw.choice([1, 1, 2, 3])
        steps = [step() for _ in range(count)]
        return steps[0] if count == 1 else {"type": "Sequence", name: steps}

    def _pattern(self) -> dict[str, str]:
        return self.draw.choice(
            [
                {"String": " "},
                {"String": "e"},
                {"String": "ll"},
                {"Regex": r"\s+"},
                {"Regex": r"\p{L}+"},
                {"Regex": r"[aeo]"},
                {"Regex": r"\p{N}{1,2}"},
                {"Regex": " {2,}"},
                {"Regex": "^ "},
            ]
        )

    def _normaliser(self) -> dict[str, Any]:
        flip = self.flip
        return self.draw.choice(
            [
                {"type": "NFC"},
                {"type": "NFD"},
                {"type": "NFKC"},
                {"type": "NFKD"},
                {"type": "Lowercase"},
                {"type": "StripAccents"},
                {"type": "Nmt"},
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Strip", "strip_left": flip(), "strip_right": flip()},
                {
                    "type": "Replace",
                    "pattern": self._pattern(),
                    "content": self.draw.choice(["▁", "", "x", " "]),
                },
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                {
                    "type": "BertNormalizer",
                    "clean_text": flip(),
                    "handle_chinese_chars": flip(),
                    "strip_accents": self.draw.choice([None, True, False]),
                    "lowercase": flip(),
                },
            ]
        )

    def _cut(self) -> dict[str, Any]:
        draw, flip = self.draw, self.flip
        return draw.choice(
            [
                {"type": "Whitespace"},
                {"type": "WhitespaceSplit"},
                {"type": "BertPreTokenizer"},
                {"type": "UnicodeScripts"},
                {"type": "Digits", "individual_digits": flip()},
                {"type": "Punctuation", "behavior": draw.choice(BEHAVIOURS)},
                {"type": "CharDelimiterSplit", "delimiter": draw.choice("e _")},
                {"type": "FixedLength", "length": draw.randint(1, 6)},
                {
                    "type": "Metaspace",
                    "replacement": draw.choice("▁▁_"),
                    "prepend_scheme": draw.choice(SCHEMES),
                    "split": flip(),
                },
                {
                    "type": "Metaspace",
                    "replacement": "▁",
                    "prepend_scheme": draw.choice(SCHEMES),
                    "split": flip(),
                },
                {
                    "type": "Split",
                    "pattern": self._pattern(),
                    "behavior": draw.choice(BEHAVIOURS),
                    "invert": flip(),
                },
            ]
        )

    def _cuts(self) -> Any:
        given = self._some(self._cut, "pretokenizers", 0.8)
        if not self.bytes:
            return given
        level = {
            "type": "ByteLevel",
            "add_prefix_space": self.flip(),
            "trim_offsets": True,
            "use_regex": self.flip(),
        }
        return {"type": "Sequence", "pretokenizers": [given, level]} if given else level

    def _letters(self) -> list[str]:
        letters = sorted({*LETTERS, "▁", "İ"} - {" ", "\n", "\t"} if not self.bytes else ALPHABET)
        self.draw.shuffle(letters)
        return letters if self.bytes else letters[: self.draw.randint(20, len(letters))]

    def _bpe(self) -> dict[str, Any]:
        fallback = not self.bytes and self.flip()
        prefix = "##" if not self.bytes and self.flip(0.15) else None
        suffix = "</w>" if not self.bytes and self.flip(0.15) else None
        texts = self._letters()
        if prefix or suffix:
            ends = [letter + suffix for letter in texts] if suffix else []
            texts += [(prefix or "") + letter for letter in [*texts, *ends]] if prefix else ends
        merges: list[list[str]] = []
        known = dict.fromkeys(texts)
        for _ in range(self.draw.randint(0, 120)):
            left, right = self.draw.choice(list(known)), self.draw.choice(list(known))
            if prefix and not right.startswith(prefix):
                continue
            if suffix and left.endswith(suffix):
                continue
            made = left + (right.removeprefix(prefix) if prefix else right)
            if made not in known and len(made) < 8:
                known[made] = None
                merges.append([left, right])
        unknown = ["<unk>"] if self.flip() else []
        rest = ["<s>"] if self.flip() else []
        all_bytes = [f"<0x{i:02X}>" for i in range(256)] if fallback else []
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown[0] if unknown else None,
            "continuing_subword_prefix": prefix,
            "end_of_word_suffix": suffix,
            "fuse_unk": self.flip(),
            "byte_fallback": fallback,
            "ignore_merges": self.flip(0.3),
            "vocab": {
                t: i for i, t in enumerate(dict.fromkeys([*unknown, *rest, *all_bytes, *known]))
            },
            "merges": merges,
        }

    def _pieces(self, count: int) -> list[str]:
        letters = self._letters()
        made = dict.fromkeys(letters)
        for _ in range(count):
            made["".join(self.draw.choices(letters, k=self.draw.randint(2, 4)))] = None
        for text in ("the", "hello", "He", "is", "▁the", "▁", "end"):
            if not self.bytes and self.flip():
                made[text] = None
        return list(made)

    def _words(self) -> dict[str, Any]:
        prefix = self.draw.choice(["##", "##", "@"])
        pieces = self._pieces(60)
        texts = ["<unk>", "<s>", *pieces, *(prefix + piece for piece in pieces if self.flip(0.7))]
        return {
            "type": "WordPiece",
            "unk_token": "<unk>",
            "continuing_subword_prefix": prefix,
            "max_input_chars_per_word": self.draw.choice([100, 6]),
            "vocab": {t: i for i, t in enumerate(dict.fromkeys(texts))},
        }

    def _unigram(self) -> dict[str, Any]:
        fallback = not self.bytes and self.flip(0.3)
        texts = [
            "<unk>",
            "<s>",
            "</s>",
            *([f"<0x{i:02X}>" for i in range(256)] if fallback else []),
        ]
        pieces = [t for t in self._pieces(80) if t not in texts]
        scored = [[text, 0.0] for text in texts]
        scored += [[text, -round(self.draw.uniform(1, 9), 3)] for text in pieces]
        return {"type": "Unigram", "unk_id": 0, "vocab": scored, "byte_fallback": fallback}

    def _level(self) -> dict[str, Any]:
        texts = ["<unk>", "<s>", *self._pieces(40)]
        vocabulary = {t: i for i, t in enumerate(dict.fromkeys(texts))}
        return {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}

    def _added(self, model: dict[str, Any]) -> list[dict[str, Any]]:
        vocabulary = model["vocab"]
        known = (
            [entry[0] for entry in vocabulary] if isinstance(vocabulary, list) else list(vocabulary)
        )
        made: list[dict[str, Any]] = []
        number = len(known)
        for text in self.draw.sample(ADDED, self.draw.randint(0, len(ADDED))):
            special = len(text) > 1 and self.flip(0.8 if text[0] == "<" else 0.5)
            there = text in known
            made.append(
                {
                    "id": known.index(text) if there else number,
                    "content": text,
                    "single_word": self.flip(0.2),
                    "lstrip": self.flip(0.25),
                    "rstrip": self.flip(0.25),
                    "normalized": self.flip(0.2) if special else self.flip(0.7),
                    "special": special,
                }
            )
            number += not there
        return made

    def _decoder(self, model: dict[str, Any]) -> Any:
        if self.bytes:
            return {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            }
        if model["type"] == "WordPiece":
            return {
                "type": "WordPiece",
                "prefix": model["continuing_subword_prefix"],
                "cleanup": False,
            }
        if model.get("end_of_word_suffix"):
            return {"type": "BPEDecoder", "suffix": "</w>"}
        meta = {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": self.draw.choice(SCHEMES),
            "split": True,
        }
        replaced = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
        whole = [replaced, {"type": "ByteFallback"}, {"type": "Fuse"}]
        return self.draw.choice([None, meta, {"type": "Sequence", "decoders": whole}])

    def _processor(self) -> Any:
        special = [token for token in self.json["added_tokens"] if token["special"]]
        if not special or self.flip(0.3):
            return None
        first, last = (self.draw.choice(special) for _ in range(2))
        around = {"sep": [last["content"], last["id"]], "cls": [first["content"], first["id"]]}
        level = {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        }
        put = lambda token, kind: {"SpecialToken": {"id": token["content"], "type_id": kind}}  # noqa: E731
        a, b = ({"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB"))
        template = {
            "type": "TemplateProcessing",
            "single": [put(first, 0), a, *[put(last, 0)] * self.draw.randint(0, 2)],
            "pair": [put(first, 0), a, put(last, 0), b, put(last, 1)],
            "special_tokens": {
                t["content"]: {"id": t["content"], "ids": [t["id"]], "tokens": [t["content"]]}
                for t in (first, last)
            },
        }
        return self.draw.choice(
            [
                level,
                {"type": "BertProcessing", **around},
                template,
                template,
                {
                    "type": "RobertaProcessing",
                    **around,
                    "trim_offsets": True,
                    "add_prefix_space": self.flip(),
                },
                {"type": "Sequence", "processors": [level, template]},
            ]
        )


def ids_of(reference: tokenizers.Tokenizer, text: str) -> list[int] | None:
    """What the library makes of a text; None where it panics."""
    try:
        return reference.encode(text, add_special_tokens=False).ids
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


def is_ambiguous(file: RandomFile, reference: tokenizers.Tokenizer) -> bool:
    """Whether added tokens are nothing once normalised, or the same.

    At the first the library panics on some texts, of the second it takes now one, now the other.
    """
    normaliser = reference.normalizer
    if normaliser is None:
        return False
    texts = [t["content"] for t in file.json["added_tokens"] if t["normalized"]]
    normal = [normaliser.normalize_str(text) for text in texts]
    return "" in normal or len(set(normal)) < len(normal)


def ours_of(file: RandomFile, size: int) -> Tokenizer:
    """The tokenizer of a folder that has the file."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokenizer.json").write_text(json.dumps(file.json))
        Path(folder, "tokenizer_config.json").write_text("{}")
        settings = Settings("config.json", {"vocab_size": size})
        return Tokenizer.from_metadata(tokenizer_keys(Path(folder), settings))


def differences(seed: int, texts: int) -> Iterator[tuple[str, str, object, object]]:
    """What differs from the library, for one file: what was asked, the text, both answers."""
    file = RandomFile(seed)
    reference = tokenizers.Tokenizer.from_str(json.dumps(file.json))
    ours = ours_of(file, max(reference.get_vocab().values()) + 1)
    if is_ambiguous(file, reference):
        return
    last = ""
    for _ in range(texts):
        text = file.text()
        plain = ids_of(reference, text)
        if plain is None:
            continue
        asked: dict[str, tuple[object, object]] = {
            "encode": (ours.encode(text, add_special=False, parse_special=True), plain),
            **_in_steps(ours, text, plain),
        }
        pair = reference.encode(last, text)
        both = reference.encode(text).ids
        asked["around"] = ours.encode(text, parse_special=True), both
        if file.json["post_processor"] and not _spells(reference, ours, (last, text)):
            asked["pair"] = _pair(ours, last, text), (pair.ids, pair.type_ids)
        yield from ((name, text, *both) for name, both in asked.items() if both[0] != both[1])
        last = text


def _pair(ours: Tokenizer, first: str, second: str) -> object:
    try:
        return ours.encode_pair(first, second)
    except TokenizerError:  # nothing is between the two
        ids = [ours.encode(text, add_special=False) for text in (first, second)]
        return ids[0] + ids[1], [0] * len(ids[0]) + [1] * len(ids[1])


def _control(ours: Tokenizer) -> set[int]:
    return {token for token in range(ours.vocab_size) if ours.is_control(token)}


def _spells(reference: tokenizers.Tokenizer, ours: Tokenizer, texts: tuple[str, ...]) -> bool:
    """Whether the library finds control tokens in texts, which no text of a user is here."""
    found = (reference.encode(text, add_special_tokens=False).ids for text in texts)
    return not _control(ours).isdisjoint(token for ids in found for token in ids)


def _in_steps(ours: Tokenizer, text: str, plain: list[int]) -> dict[str, tuple[object, object]]:
    """The library's steps one by one; and that nobody types control tokens."""
    library = ours._library
    assert library is not None
    stepwise = library._stepwise(text, library._parsing, library._steps, None)
    typed = ours.encode(text, add_special=False)
    shielded = ours.encode(ours.shield(text), add_special=False, parse_special=True)
    made = {
        "stepwise": (stepwise, plain) if library._control.isdisjoint(plain) else ([], []),
        "typed": (sorted(library._control.intersection(typed)), list[int]()),
        "shielded": (sorted(library._control.intersection(shielded)), list[int]()),
    }
    return dict(made)


def main() -> None:
    """Compare many, and print what differs."""
    first, count, texts = map(int, sys.argv[1:])
    told: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            for name, text, got, wanted in differences(seed, texts):
                told[name] += 1
                if told[name] < 8:
                    print(seed, name, repr(text), got, wanted)  # noqa: T201
        except TokenizerError as error:
            refused[str(error)[:150]] += 1
    print(f"{count} files of {texts} texts: differences {dict(told)}, refused {dict(refused)}")  # noqa: T201


if __name__ == "__main__":
    main()
