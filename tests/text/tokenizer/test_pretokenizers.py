"""Where pre-tokenizers cut, seen through a vocabulary that merges whatever stands together."""

import pytest
from tokenizers import Regex, pre_tokenizers

from tests.patience import grows_linearly
from wgpu_backend.text.tokenizer import PRETOKENIZERS
from wgpu_backend.text.tokenizer.categories import pin_properties


def words(name, text):
    cuts = [
        pre_tokenizers.Split(Regex(pin_properties(e)), "isolated")
        for e in PRETOKENIZERS[name].expressions
    ]
    return [word for word, _ in pre_tokenizers.Sequence(cuts).pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "It's 1234  a", ["It", "'s", " 1234", " ", " a"]),
        ("llama-bpe", "IT'S 1234\n\nx", ["IT", "'S", " ", "123", "4", "\n\n", "x"]),
        ("qwen2", "a12\n", ["a", "1", "2", "\n"]),
        ("starcoder", "a 12", ["a", " ", "1", "2"]),
        ("falcon", "a`b 1234", ["a", "`", "b", " ", "123", "4"]),
        ("default", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
        ("deepseek-v3", "x漢字.b ", ["x", "漢字", ".b", " "]),
        ("deepseek-llm", "Ab  漢 12", ["Ab", "  ", "漢", " ", "12"]),
        ("deepseek-coder", "a 12", ["a", " ", "1", "2"]),
        ("tekken", "ÉCOLEécole 12/", ["ÉCOLEécole", " ", "1", "2", "/"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("kimi-k2", "ab漢字cd", ["ab", "漢字", "cd"]),
        ("superbpe", "a b 1234567", ["a b ", "1", "234", "567"]),
        ("afmoe", "x 12345678", ["x", " ", "12", "345", "678"]),
        ("tiny_aya", "12345 12345x", ["12", "345", " ", "123", "45", "x"]),
        ("bloom", "a b.c", ["a", " b", ".", "c"]),
        ("viking", "ab12", ["ab", "1", "2"]),
        ("chameleon", "IMGIMGABZ a1", ["IMGIMGABZ", " a", "1"]),
        ("exaone-moe", "a b c1", ["a b c", "1"]),
        ("laguna", "a\n\n b", ["a", "\n\n", " b"]),
        ("ufakzeka", "Ali'nin", ["Ali", "'nin"]),
        ("gemma4", "a b\n\nc", ["a b", "\n\n", "c"]),
        ("youtu", "한국어 漢字", ["한국어", " ", "漢字"]),
        ("jais-2", "a   b", ["a", "  ", " b"]),
        # White space in the range of the third expression is no part of it.
        ("deepseek-llm", "漢\u2029\u2029 33f", ["漢", "\u2029\u2029 ", "33", "f"]),
        ("deepseek-coder", "漢\u2029\u2029 ", ["漢", "\u2029\u2029 "]),
        # A letter and a digit of Unicode 16, which llama.cpp's tables do not have yet.
        ("gpt-2", "a\u1c89b \U00010d40\u1c89", ["a", "\u1c89", "b", " \U00010d40\u1c89"]),
        ("gpt-4o", "ab\u1c89", ["ab", "\u1c89"]),
        ("spark2_5", "a\n\nb", ["a", "\n", "\n", "b"]),
        ("seed-coder", "a12 !\n", ["a", "1", "2", " !", "\n"]),
        ("minicpm5", "a1234", ["a", "123", "4"]),
        ("bailingmoe", "I'M\n\n", ["I", "'M", "\n\n"]),
        ("qwen35", "e\u0301a", ["e\u0301a"]),
        ("trillion", "a 1", ["a", " 1"]),
        ("minimax-m2", "ABc", ["ABc"]),
        ("sarvam-moe", "a\n", ["a", "\n"]),
    ],
)
def test_where_words_end(name, text, expected):
    assert words(name, text) == expected


@pytest.mark.parametrize("name", PRETOKENIZERS)
def test_hostile_runs_take_linear_time(name):
    def cut(size):
        for text in (" " * size + "漢", "1" * size + "a", "A" * size, "\u0301" * size, "'" * size):
            assert "".join(words(name, text)) == text

    assert grows_linearly(lambda: cut(5_000), lambda: cut(50_000))
