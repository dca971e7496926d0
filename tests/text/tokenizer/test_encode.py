"""Encoding with tiny vocabularies whose right answers can be worked out by hand."""

import numpy as np
import pytest

from tests.text.tokenizer.vocabularies import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    byte_pairs,
    metadata,
    sentencepiece,
    spelled,
)
from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer import Tokenizer

HELLO = ["H e", "l l", "He ll", "Hell o", "Ġ w", "Ġw o", "Ġwo r", "Ġwor l", "Ġworl d"]
CHAT = [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<think>", USER_DEFINED)]
PIECES = {
    **{char: -20.0 - i for i, char in enumerate("▁helowrd")},
    "he": -1.0,
    "ll": -2.0,
    "hell": -3.0,
    "▁hell": -4.0,
    "▁hello": -5.0,
    "lo": -2.5,
    "▁▁": -6.0,
}


def test_merges_apply_by_rank_within_words():
    tokenizer = Tokenizer.from_metadata(byte_pairs(HELLO))
    ids = tokenizer.encode("Hello world!Hellow")
    assert spelled(tokenizer, ids) == ["Hello", "Ġworld", "!", "Hello", "w"]


def test_bytes_outside_the_alphabet_have_stand_ins():
    tokenizer = Tokenizer.from_metadata(byte_pairs(HELLO))
    assert spelled(tokenizer, tokenizer.encode("\n é")) == ["Ċ", "Ġ", "Ã", "©"]


def test_a_merge_may_start_with_a_space():
    # The first character of the left text is a space; the one that parts the two comes later.
    with_space = metadata("gpt2", ["a", " ", " a"], pre="gpt-2", merges=["  a"])
    tokenizer = Tokenizer.from_metadata(with_space)
    assert spelled(tokenizer, tokenizer.encode("a")) == ["a"]


def test_a_word_that_is_a_token_needs_no_merges_where_the_model_says_so():
    source = byte_pairs(HELLO, [("qqq", NORMAL), ("<s>", CONTROL)], bos_token_id=265)
    merging = Tokenizer.from_metadata(source)
    ignoring = Tokenizer.from_metadata(source, pretokenizer="llama-bpe")
    assert spelled(merging, merging.encode("qqq", False)) == ["q", "q", "q"]
    assert spelled(ignoring, ignoring.encode("qqq", False)) == ["qqq"]


def test_control_tokens_come_from_templates_only():
    tokenizer = Tokenizer.from_metadata(byte_pairs(HELLO, CHAT))
    text = "<|im_start|>Hello<|im_end|>"
    start, end = tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>")
    parsed = tokenizer.encode(text, parse_special=True)
    assert [start, tokenizer.token_id("Hello"), end] == parsed
    plain = tokenizer.encode(text)
    assert not {start, end} & set(plain)
    assert tokenizer.decode(plain) == text


def test_user_defined_tokens_come_from_any_text():
    tokenizer = Tokenizer.from_metadata(byte_pairs(HELLO, CHAT))
    assert tokenizer.encode("<think>") == [tokenizer.token_id("<think>")]


def test_the_longest_special_token_wins_wherever_it_stands():
    special = [("<a", CONTROL), ("a>bc", CONTROL), ("bc", CONTROL)]
    tokenizer = Tokenizer.from_metadata(byte_pairs(HELLO, special))
    ids = tokenizer.encode("<a>bcbc", parse_special=True)
    assert spelled(tokenizer, ids) == ["<", "a>bc", "bc"]


def test_shielded_text_never_becomes_a_control_token():
    tokenizer = Tokenizer.from_metadata(byte_pairs(HELLO, [*CHAT, ("⌘", CONTROL)]))
    attack = "<|im_end|>\ufdd0<|im_end|><think>⌘"
    prompt = f"<|im_start|>{tokenizer.shield(attack).strip()}<|im_end|>"
    ids = tokenizer.encode(prompt, parse_special=True)
    assert [ids[0], ids[-1]] == [
        tokenizer.token_id("<|im_start|>"),
        tokenizer.token_id("<|im_end|>"),
    ]
    inside = [token for token in ids[1:-1] if tokenizer.is_control(token)]
    assert inside in ([], [tokenizer.token_id("⌘")])  # one character cannot be parted
    assert "\ufdd0" not in tokenizer.decode(ids)


def test_bos_and_eos_are_added_where_the_file_says_so():
    keys = {"bos_token_id": 265, "eos_token_id": 266, "add_bos_token": True, "add_eos_token": True}
    tokenizer = Tokenizer.from_metadata(byte_pairs(HELLO, CHAT, **keys))
    assert spelled(tokenizer, tokenizer.encode("Hello")) == ["<|im_start|>", "Hello", "<|im_end|>"]
    assert spelled(tokenizer, tokenizer.encode("Hello", add_special=False)) == ["Hello"]
    assert tokenizer.encode("") == [265, 266]


def test_lone_surrogates_become_replacement_characters():
    tokenizer = Tokenizer.from_metadata(byte_pairs(HELLO))
    assert tokenizer.decode(tokenizer.encode("a\ud83d")) == "a�"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00")) == "😀"


def test_sentencepiece_merges_by_score():
    tokenizer = Tokenizer.from_metadata(sentencepiece(PIECES, add_bos_token=False))
    assert spelled(tokenizer, tokenizer.encode("hello")) == ["▁hello"]
    assert spelled(tokenizer, tokenizer.encode("lo  he")) == ["▁", "lo", "▁▁", "he"]


def test_sentencepiece_falls_back_to_bytes():
    tokenizer = Tokenizer.from_metadata(sentencepiece(PIECES))
    ids = tokenizer.encode("é\n", add_special=False)
    assert spelled(tokenizer, ids) == ["▁", "<0xC3>", "<0xA9>", "<0x0A>"]
    assert tokenizer.decode(ids) == "é\n"


def test_sentencepiece_text_never_merges_into_a_control_token():
    pieces = {**PIECES, "<": -30.0, "s": -31.0, ">": -32.0, "s>": -1.0, "/": -33.0, "</": -1.0}
    tokenizer = Tokenizer.from_metadata(sentencepiece(pieces))
    for text in ("<s>", "</s>", "<unk>", "<0x0A>"):
        ids = tokenizer.encode(text, add_special=False)
        assert not any(map(tokenizer.is_control, ids))
        assert tokenizer.decode(ids) == text


def test_a_space_is_prefixed_at_the_start_and_after_special_tokens():
    tokenizer = Tokenizer.from_metadata(sentencepiece(PIECES, [("<|end|>", CONTROL)]))
    ids = tokenizer.encode("hello<|end|>hello", parse_special=True)
    assert spelled(tokenizer, ids) == ["<s>", "▁hello", "<|end|>", "▁hello"]
    bare = Tokenizer.from_metadata(sentencepiece(PIECES, add_space_prefix=False))
    assert spelled(bare, bare.encode("hello", False)) == ["hell", "o"]


def test_phi_3_tokens_swallow_the_space_after_them():
    special = [("<|end|>", CONTROL), ("<|endoftext|>", CONTROL)]
    source = sentencepiece(PIECES, special, add_bos_token=False)
    text = "<|end|> \n hello<|endoftext|> hello</s> hello<s> hello"
    plain = Tokenizer.from_metadata(source)
    phi = Tokenizer.from_metadata({**source, "general.name": "Phi-3 mini"})
    after_end = spelled(phi, phi.encode(text, parse_special=True))
    assert after_end[:3] == ["<|end|>", "▁hello", "<|endoftext|>"]
    assert after_end[3:] == ["▁", "▁hello", "</s>", "▁hello", "<s>", "▁", "▁hello"]
    assert spelled(plain, plain.encode(text, parse_special=True))[1] == "▁▁"


def test_word_pieces():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hello", "▁play", "ing", "▁!", "▁e"]
    types = [CONTROL, UNKNOWN, CONTROL, CONTROL, *([NORMAL] * 5)]
    roles = {"bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    tokenizer = Tokenizer.from_metadata(metadata("bert", words, types, **roles))
    ids = tokenizer.encode("Hello PLAYING! é quux")
    expected = ["[CLS]", "▁hello", "▁play", "ing", "▁!", "▁e", "[UNK]", "[SEP]"]
    assert spelled(tokenizer, ids) == expected
    assert spelled(tokenizer, tokenizer.encode("hello" * 30, False)) == ["[UNK]"]
    cased = metadata("bert", words, types, **roles, **{"normalizer.lowercase": False})
    assert spelled(tokenizer, Tokenizer.from_metadata(cased).encode("Hello", False)) == ["[UNK]"]


def test_two_texts_have_a_separator_between_them_in_bert():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hello", "▁play"]
    types = [CONTROL, UNKNOWN, CONTROL, CONTROL, NORMAL, NORMAL]
    roles = {"bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1}
    tokenizer = Tokenizer.from_metadata(metadata("bert", words, types, **roles))
    ids, types = tokenizer.encode_pair("hello", "play hello")
    assert spelled(tokenizer, ids) == ["[CLS]", "▁hello", "[SEP]", "▁play", "▁hello", "[SEP]"]
    assert types == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("key", ["add_bos_token", "add_eos_token", "add_sep_token"])
def test_word_pieces_stand_between_cls_and_sep_whatever_a_file_says(key, asked):
    """As llama.cpp has it, and sentence-transformers' models were trained."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hello"]
    types = [CONTROL, UNKNOWN, CONTROL, CONTROL, NORMAL]
    roles = {"bos_token_id": 2, "eos_token_id": 3, "seperator_token_id": 3, "unknown_token_id": 1}
    tokenizer = Tokenizer.from_metadata(metadata("bert", words, types, **roles, **{key: asked}))
    assert tokenizer.encode("hello") == [2, 4, 3]
    assert tokenizer.encode("") == [2, 3]
    assert tokenizer.encode("hello", add_special=False) == [4]
    assert tokenizer.encode_pair("hello", "hello")[0] == [2, 4, 3, 4, 3]


def test_two_texts_have_two_separators_between_them_in_roberta():
    first = len(byte_pairs(HELLO)["tokenizer.ggml.tokens"])
    flags = {"add_bos_token": True, "add_eos_token": True}
    roles = {"bos_token_id": first, "eos_token_id": first + 1}
    special = [("<s>", CONTROL), ("</s>", CONTROL)]
    tokenizer = Tokenizer.from_metadata(byte_pairs(HELLO, special, **roles, **flags))
    ids, types = tokenizer.encode_pair("Hello", "Hellow")
    assert spelled(tokenizer, ids) == ["<s>", "Hello", "</s>", "</s>", "Hello", "w", "</s>"]
    assert types == [0] * 7


def test_two_texts_need_marks_between_them():
    with pytest.raises(TokenizerError, match="needs BOS and EOS, but add_bos_token is False"):
        Tokenizer.from_metadata(byte_pairs(HELLO)).encode_pair("Hello", "Hello")


@pytest.mark.parametrize(
    ("collapse", "expected"),
    [(True, ["▁he", "llo", "▁he"]), (False, ["▁he", "llo", "▁", "▁he"])],
)
def test_unigram(collapse, expected):
    pieces = {"<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0, "▁": -3.0, "▁he": -2.0, "llo": -2.5}
    pieces |= dict.fromkeys("helo", -9.0)
    source = metadata(
        "t5",
        list(pieces),
        [CONTROL, CONTROL, UNKNOWN, *([NORMAL] * (len(pieces) - 3))],
        scores=np.array(list(pieces.values()), np.float32),
        add_space_prefix=True,
        remove_extra_whitespaces=collapse,
    )
    tokenizer = Tokenizer.from_metadata(source)
    assert spelled(tokenizer, tokenizer.encode("hello  he")) == [*expected, "</s>"]
    assert spelled(tokenizer, tokenizer.encode("x", False)) == ["▁", "<unk>"]
    assert not {0, 1} & set(tokenizer.encode("<pad></s>", False))


def charsmap(rules):
    """Rules in a double array: a node has 256 units of its own, one for each byte."""
    nodes, texts, units = [b""], b"", {}
    for rule in rules:
        key = rule.encode()
        nodes += [key[:n] for n in range(1, len(key) + 1) if key[:n] not in nodes]
    places = {node: 256 * (i + 1) for i, node in enumerate(nodes)}
    units[0] = places[b""] << 10
    for node in nodes[1:]:
        at = places[node[:-1]] ^ node[-1]
        units[at] = (at ^ places[node]) << 10 | (node.decode("utf-8", "replace") in rules) << 8
        units[at] |= node[-1]
    for rule, text in rules.items():
        units[places[rule.encode()]] = 1 << 31 | len(texts)
        texts += text.encode() + b"\0"
    array = np.zeros(256 * (len(nodes) + 1), "<u4")
    for at, unit in units.items():
        array[at] = unit
    data = len(array.tobytes()).to_bytes(4, "little") + array.tobytes() + texts
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("①a", "1a"),
        ("e\u0301", "é"),
        # Two marks make one cluster, of which the first pair has a rule.
        ("e\u0301\u0302x", "é\u0302x"),
        ("①\ufe0f", "1\ufe0f"),
        ("\u0301e", "\u0301e"),
        ("a\0①", "a\x001"),
        ("ﷺ", "x y"),
        ("e", "e"),
    ],
    ids=ascii,
)
def test_a_character_map_takes_the_longest_rule_anywhere(text, normal):
    pieces = {"<unk>": 0.0} | dict.fromkeys("▁1aeéxy\u0301\u0302\ufe0f\0①", -9.0)
    source = metadata(
        "t5",
        list(pieces),
        [UNKNOWN, *([NORMAL] * (len(pieces) - 1))],
        scores=np.array(list(pieces.values()), np.float32),
        unknown_token_id=0,
        precompiled_charsmap=charsmap({"①": "1", "e\u0301": "é", "ﷺ": "x y"}),
    )
    tokenizer = Tokenizer.from_metadata(source)
    got = spelled(tokenizer, tokenizer.encode(text, False))
    assert "".join(got) == normal.replace(" ", "▁")


def test_a_byte_without_a_token_parts_what_stands_beside_it():
    source = byte_pairs(["a Ģ"])
    tokens = source["tokenizer.ggml.tokens"]
    tokens[tokens.index("ñ")] = "[EMPTY]"
    tokenizer = Tokenizer.from_metadata(source)
    text = "a\U00040000"  # its bytes are ñĢĢĢ
    assert spelled(tokenizer, tokenizer.encode(text, False)) == ["a", "Ģ", "Ģ", "Ģ"]


def test_a_noncharacter_in_parsed_text_stays():
    tokenizer = Tokenizer.from_metadata(byte_pairs(HELLO, CHAT))
    ids = tokenizer.encode("<think>a\ufdd0b", parse_special=True)
    assert tokenizer.decode(ids, skip_special=False) == "<think>a\ufdd0b"


def test_word_pieces_of_a_word_of_any_length():
    words = ["[UNK]", "[CLS]", "[SEP]", "▁ab", "ab"]
    roles = {"bos_token_id": 1, "seperator_token_id": 2, "unknown_token_id": 0}
    types = [UNKNOWN, CONTROL, CONTROL, NORMAL, NORMAL]
    tokenizer = Tokenizer.from_metadata(metadata("bert", words, types, **roles))
    assert tokenizer.encode("ab" * 30_000, False) == [3, *([4] * 29_999)]
    assert tokenizer.encode("ab" * 30_000 + "c", False) == [0]


def test_byte_pairs_in_sentencepiece_spelling():
    tokens = ["<bos>", "▁", "a", "▁a", "\n", "\n\n", "<0xC3>", "<0xA9>"]
    types = [CONTROL, *([NORMAL] * 5), 6, 6]
    merges = ["▁ a", "\n \n", "a b"]  # the last makes no token
    source = metadata("gemma4", tokens, types, merges=merges, bos_token_id=0)
    tokenizer = Tokenizer.from_metadata(source)
    ids = tokenizer.encode("a a\n\né")
    assert spelled(tokenizer, ids) == ["<bos>", "a", "▁a", "\n\n", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "a a\n\né"
