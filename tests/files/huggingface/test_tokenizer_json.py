"""Tokens of a folder are those that the tokenizers library makes by its tokenizer.json."""

import json
import random

import numpy as np
import pytest
import tokenizers
from tokenizers import Regex, pre_tokenizers

from tests.files.huggingface.folders import TOKENIZER, write_folder
from tests.files.huggingface.random_tokenizers import differences
from wgpu_backend.errors import TokenizerError
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.files.huggingface.create import create
from wgpu_backend.files.huggingface.folder import open_folder
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tokens import tokenizer_keys
from wgpu_backend.text.tokenizer import Tokenizer
from wgpu_backend.text.tokenizer.library import KEY
from wgpu_backend.text.tokenizer.pretokenizers import FASTER

LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
WORDS = ["[UNK]", "[CLS]", "[SEP]", "a", "b", "é", "ab"]


def keys(path, tokenizer, given=None, **files):
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "tokenizer_config.json").write_text(json.dumps(given or {}))
    for name, values in files.items():
        (path / f"{name}.json").write_text(json.dumps(values))
    return tokenizer_keys(path, Settings("config.json", {}))


def token(number, text, special=True, **flags):
    chosen = dict.fromkeys(FLAGS, False) | flags
    return {"id": number, "content": text, "special": special, **chosen}


def levels(*added, **sections):
    """A tokenizer.json whose tokens are words."""
    vocabulary = {text: i for i, text in enumerate(WORDS)}
    return {
        "version": "1.0",
        "added_tokens": [token(i, text) for i, text in enumerate(WORDS[:3])] + list(added),
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
        **sections,
    }


@pytest.mark.parametrize("seed", range(24))
def test_random_files_give_the_library_s_tokens(seed):
    assert list(differences(seed, 12)) == []


@pytest.mark.slow
def test_many_random_files_give_the_library_s_tokens():
    found = [each for seed in range(100, 250) for each in differences(seed, 30)]
    assert found == []


@pytest.mark.parametrize(
    ("flags", "text", "ids"),
    [
        ({}, "a <x> b", [3, 7, 4]),
        ({}, "a<x>b", [3, 7, 4]),
        ({"single_word": True}, "a<x>b", [0]),
        ({"single_word": True}, "a <x> b", [3, 7, 4]),
        ({"normalized": True}, "<X>", [7]),
    ],
)
def test_flags_of_added_tokens_count(tmp_path, flags, text, ids):
    file = levels(token(7, "<x>", **flags), normalizer={"type": "Lowercase"})
    tokenizer = Tokenizer.from_metadata(keys(tmp_path, file))
    assert tokenizer.encode(text, add_special=False, parse_special=True) == ids


FIRST = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
PLACES = ["[UNK]", "▁1", "▁⁄", "▁2", "a", "▁a", "1", "⁄", "2", "b"]


@pytest.mark.parametrize(
    ("normaliser", "text", "ids"),
    [
        # One character that becomes three, each cut off.
        ({"type": "NFKD"}, "½<y>b", [1, 2, 3, 11, 9]),
        ({"type": "NFKD"}, "a½<y>", [5, 6, 7, 8, 11]),
        # A first character that becomes nothing.
        ({"type": "Replace", "pattern": {"String": "\0"}, "content": ""}, "\0a<y>b", [4, 11, 9]),
        ({"type": "Replace", "pattern": {"String": "\0"}, "content": ""}, "a\0<y>b", [5, 11, 9]),
    ],
)
def test_the_start_of_a_text_is_where_its_first_character_was(tmp_path, normaliser, text, ids):
    file = levels(
        normalizer=normaliser,
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, FIRST],
        },
        model={
            "type": "WordLevel",
            "vocab": {text: i for i, text in enumerate(PLACES)},
            "unk_token": "[UNK]",
        },
        added_tokens=[
            token(10, "<x>"),
            token(11, "<y>", special=False, normalized=True),
        ],
    )
    reference = tokenizers.Tokenizer.from_str(json.dumps(file))
    assert reference.encode(text, add_special_tokens=False).ids == ids
    ours = Tokenizer.from_metadata(keys(tmp_path, file))
    assert ours.encode(text, add_special=False) == ids
    # With a control token that a user typed, the library's steps are called one by one.
    typed = ours.encode(ours.shield(text + "<x>"), add_special=False, parse_special=True)
    assert typed[: len(ids) - 1] == ids[:-1]
    assert 10 not in typed


def test_tokenizer_config_adds_tokens_and_flags(tmp_path):
    listed = {"7": {"content": "<x>", "rstrip": True, "special": True}, "8": {"content": "<y>"}}
    tokenizer = Tokenizer.from_metadata(
        keys(tmp_path, levels(token(7, "<x>")), {"added_tokens_decoder": listed})
    )
    added = json.loads(str(keys(tmp_path, levels(), {"added_tokens_decoder": listed})[KEY]))
    assert [t["rstrip"] for t in added["added_tokens"]] == [False, False, False, True, False]
    ids = tokenizer.encode("<y><x>  a", add_special=False, parse_special=True)
    assert ids == [8, 7, 3]


def test_normalised_control_tokens_cannot_be_typed(tmp_path):
    """Full-width letters, which NFKC makes a control token of, are a user's text."""
    file = levels(token(7, "<x>", normalized=True), normalizer={"type": "NFKC"})
    tokenizer = Tokenizer.from_metadata(keys(tmp_path, file))
    typed = "a ＜x＞ b"
    assert tokenizer.encode(typed, add_special=False, parse_special=True) == [3, 7, 4]
    assert tokenizer.encode(typed, add_special=False) == [3, 0, 4]
    shielded = f"<x>{tokenizer.shield(typed)}"
    assert 7 not in tokenizer.encode(shielded, add_special=False, parse_special=True)[1:]


def test_pieces_of_a_vocabulary_that_control_cannot_be_typed(tmp_path):
    """A unigram model has them among its pieces."""
    pieces = [["<unk>", 0.0], ["<s>", 0.0], ["<", -3.0], ["s", -3.0], [">", -3.0]]
    file = {
        "version": "1.0",
        "added_tokens": [token(0, "<unk>"), token(1, "<s>")],
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces},
    }
    tokenizer = Tokenizer.from_metadata(keys(tmp_path, file))
    assert tokenizer.encode("<s>", add_special=False, parse_special=True) == [1]
    assert tokenizer.encode("<s>", add_special=False) == [2, 3, 4]
    shielded = tokenizer.shield("<s>") + "<s>"
    assert tokenizer.encode(shielded, add_special=False, parse_special=True) == [2, 3, 4, 1]


@pytest.mark.parametrize("model", ["Unigram", "WordLevel"])
def test_a_piece_that_is_control_after_normalising_cannot_be_typed(tmp_path, model):
    """The text has no control token until its letters are normalised."""
    texts = ["<unk>", "<s>", "<", "s", ">"]
    table = {text: i for i, text in enumerate(texts)}
    own = {"unk_token": "<unk>", "vocab": table}
    if model == "Unigram":
        own = {"unk_id": 0, "vocab": [[text, -i * 3.0] for text, i in table.items()]}
    file = {
        "version": "1.0",
        "added_tokens": [token(0, "<unk>"), token(1, "<s>")],
        "normalizer": {"type": "NFKC"},
        "model": {"type": model, **own},
    }
    tokenizer = Tokenizer.from_metadata(keys(tmp_path, file))
    typed = "\uff1cs\uff1e"  # fullwidth signs
    assert tokenizer.encode(typed, add_special=False, parse_special=True) == [1]
    for given in (typed, f"<s>{typed}"):
        shielded = tokenizer.shield(given)
        assert tokenizer.encode(shielded, add_special=False, parse_special=True).count(1) == 0
        prompt = "<s>" + shielded
        assert tokenizer.encode(prompt, add_special=False, parse_special=True).count(1) == 1


def test_what_is_put_around_texts_is_the_file_s(tmp_path):
    around = {"cls": ["[CLS]", 1], "sep": ["[SEP]", 2]}
    for kind, pair in (
        ("BertProcessing", ([1, 3, 2, 4, 2], [0, 0, 0, 1, 1])),
        ("RobertaProcessing", ([1, 3, 2, 2, 4, 2], [0] * 6)),
    ):
        more = {"trim_offsets": True, "add_prefix_space": False} if kind[0] == "R" else {}
        file = levels(post_processor={"type": kind, **around, **more})
        tokenizer = Tokenizer.from_metadata(keys(tmp_path, file))
        assert tokenizer.encode("a") == [1, 3, 2]
        assert tokenizer.encode_pair("a", "b") == pair


def test_nothing_is_put_around_texts_where_the_file_says_nothing(tmp_path):
    """As transformers 5 has it, whatever tokenizer_config.json says."""
    given = {"bos_token": "[CLS]", "eos_token": "[SEP]", "add_bos_token": True}
    for file in (levels(), levels(post_processor=LEVEL)):
        made = keys(tmp_path, file, given)
        assert made["tokenizer.ggml.add_bos_token"] is False
        assert Tokenizer.from_metadata(made).encode("a") == [3]
        with pytest.raises(TokenizerError, match="cannot encode a text pair: needs BOS and EOS"):
            Tokenizer.from_metadata(made).encode_pair("a", "b")


def test_word_pieces_whose_file_says_nothing_lose_no_token_in_a_pair(tmp_path):
    """A BERT vocabulary usually has [CLS], so the second text's first token was taken for it."""
    vocabulary = {text: i for i, text in enumerate(WORDS)}
    pieces = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    model = {**pieces, "max_input_chars_per_word": 100, "vocab": vocabulary}
    tokenizer = Tokenizer.from_metadata(keys(tmp_path, levels(post_processor=LEVEL, model=model)))
    assert tokenizer.encode("a b") == [3, 4]
    with pytest.raises(TokenizerError, match="the post_processor of"):
        tokenizer.encode_pair("a", "b")


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({"tokenizer_class": "RobertaTokenizer"}, [0, 2, 1]),
        ({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}, [0, 2]),
        ({"bos_token": "<s>", "eos_token": "</s>", "add_eos_token": True}, [2, 1]),
        ({"bos_token": "<s>", "eos_token": "</s>"}, [2]),
    ],
)
def test_what_classes_of_older_folders_put_around_texts(tmp_path, given, ids):
    (tmp_path / "vocab.json").write_text(json.dumps({"<s>": 0, "</s>": 1, "a": 2}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(given))
    made = tokenizer_keys(tmp_path, Settings("config.json", {}))
    assert Tokenizer.from_metadata(made).encode("a") == ids


@pytest.mark.parametrize(
    ("decoder", "ids", "text"),
    [
        (None, [3, 4], "a b"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": False}, [3, 4], "a b"),
        ({"type": "BPEDecoder", "suffix": "b"}, [6, 3], "a a"),
        ({"type": "Replace", "pattern": {"String": "b"}, "content": " "}, [3, 6], "aa "),
        ({"type": "Fuse"}, [3, 4], "ab"),
    ],
)
def test_tokens_join_as_the_decoder_does(tmp_path, decoder, ids, text):
    tokenizer = Tokenizer.from_metadata(keys(tmp_path, levels(decoder=decoder)))
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"normalizer": {"type": "Upper"}}, "key 'normalizer' cannot be used"),
        ({"pre_tokenizer": {"type": "Cut"}}, "key 'pre_tokenizer' cannot be used"),
        ({"post_processor": {"type": "Cut"}}, "key 'post_processor' cannot be used"),
        ({"decoder": {"type": "Cut"}}, "key 'decoder' cannot be used"),
        ({"normalizer": {"type": "NFC", "form": "C"}}, "key 'normalizer.form' is 'C'"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{**LEVEL, "cut": 3}]}},
            "key 'pre_tokenizer.cut' is '3'",
        ),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}},
            "key 'model.dropout' is 0.1",
        ),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}},
            "key 'model' cannot be used",
        ),
        (
            {"decoder": {"type": "CTC", "pad_token": "a", "word_delimiter_token": "|",
                         "cleanup": True}},
            "key 'decoder' has a step of type 'CTC'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_told(tmp_path, sections, told):
    with pytest.raises(TokenizerError, match=told):
        Tokenizer.from_metadata(keys(tmp_path, levels(**sections)))


@pytest.mark.parametrize("expression", FASTER)
def test_faster_expressions_cut_as_the_files_do(expression):
    draw = random.Random(1)
    texts = ["".join(draw.choices("123456 7 a\n\tb٣_é", k=draw.randint(0, 14))) for _ in range(300)]
    for behaviour in ("isolated", "removed", "merged_with_previous", "contiguous"):
        for invert in (False, True):
            slow, fast = (
                pre_tokenizers.Split(Regex(each), behaviour, invert)
                for each in (expression, FASTER[expression])
            )
            for text in texts:
                assert slow.pre_tokenize_str(text) == fast.pre_tokenize_str(text)


def test_settings_of_calls_are_left_to_calls(tmp_path):
    cut = {"max_length": 2, "direction": "Right", "strategy": "LongestFirst", "stride": 0}
    tokenizer = Tokenizer.from_metadata(keys(tmp_path, levels(truncation=cut)))
    assert tokenizer.encode("a b a b", add_special=False) == [3, 4, 3, 4]


def test_a_created_file_has_the_folder_s_tokens(tmp_path):
    composed = {**TOKENIZER, "normalizer": {"type": "NFC"}, "pre_tokenizer": LEVEL}
    folder = write_folder(tmp_path / "folder", tokenizer=composed)
    create(tmp_path / "made.gguf", folder)
    with open_folder(folder) as opened, open_gguf(tmp_path / "made.gguf") as made:
        assert made.metadata[KEY] == opened.metadata[KEY]
        tokenizers = [Tokenizer.of_file(file) for file in (opened, made)]
    for text in ("the in<s>", " Åthe", "Å"):
        ids = [t.encode(text, add_special=False, parse_special=True) for t in tokenizers]
        assert ids[0] == ids[1]
    assert tokenizers[0].encode("A\u030a") == tokenizers[0].encode("Å")


def test_a_file_that_names_more_tokens_than_there_are_is_told(tmp_path):
    made = keys(tmp_path, levels())
    made["tokenizer.ggml.tokens"] = WORDS[:4]
    made["tokenizer.ggml.token_type"] = np.ones(4, np.int32)
    with pytest.raises(TokenizerError, match="highest id is 6, needs ids below 4"):
        Tokenizer.from_metadata(made)


def test_llama_cpp_is_not_told_a_name_for_what_it_does_otherwise(tmp_path):
    (tmp_path / "a").mkdir()
    lower = keys(tmp_path / "a", TOKENIZER | {"normalizer": {"type": "Lowercase"}})
    assert lower["tokenizer.ggml.pre"] == "huggingface"
    assert keys(tmp_path, levels())["tokenizer.ggml.model"] == "huggingface"
    composed = keys(tmp_path, TOKENIZER | {"normalizer": {"type": "NFC"}})
    assert composed["tokenizer.ggml.pre"] == "gpt-2"


@pytest.mark.parametrize(
    ("generation", "config", "eos", "ends"),
    [
        ({"eos_token_id": [2, 5]}, {}, 2, {2, 5}),
        ({"eos_token_id": 5}, {"eos_token_id": 1}, 5, {1, 5}),
        ({}, {"eos_token_id": [1, 4]}, 1, {1, 4}),
        ({"eos_token_id": [4]}, {}, 4, {4}),
    ],
)
def test_every_end_of_generation_config_ends_an_answer(tmp_path, generation, config, eos, ends):
    (tmp_path / "tokenizer.json").write_text(json.dumps(levels()))
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    made = tokenizer_keys(tmp_path, Settings("config.json", config))
    assert made["tokenizer.ggml.eos_token_id"] == eos
    assert Tokenizer.from_metadata(made).eog_ids == ends


def test_the_tokenizer_s_own_end_ends_an_answer_too(tmp_path):
    made = keys(
        tmp_path, levels(), {"eos_token": "[SEP]"}, generation_config={"eos_token_id": [4, 5]}
    )
    assert made["tokenizer.ggml.eos_token_id"] == 2
    np.testing.assert_array_equal(made["tokenizer.ggml.eos_token_ids"], [4, 5])
    assert Tokenizer.from_metadata(made).eog_ids == {2, 4, 5}


@pytest.mark.parametrize("ids", [[99], ["x"], 3.5])
def test_damaged_ends_of_a_file_are_told(tmp_path, ids):
    made = keys(tmp_path, levels()) | {"tokenizer.ggml.eos_token_ids": ids}
    with pytest.raises(TokenizerError, match="eos_token_ids"):
        Tokenizer.from_metadata(made)


@pytest.mark.parametrize(
    ("files", "given", "wanted"),
    [
        ({"chat_template.jinja": "FILE"}, "CONFIG", {"": "FILE"}),
        ({"chat_template.jinja": "FILE"}, [{"name": "a", "template": "A"}], {"": "FILE"}),
        ({"chat_template.json": '{"chat_template": "JSON"}'}, None, {"": "JSON"}),
        ({"chat_template.json": '{"chat_template": "JSON"}'}, "CONFIG", {"": "CONFIG"}),
        ({"additional_chat_templates/tool_use.jinja": "TOOL"}, "CONFIG",
         {"": "CONFIG", ".tool_use": "TOOL"}),
        ({"chat_template.jinja": "FILE", "additional_chat_templates/a-b.jinja": "AB"}, None,
         {"": "FILE", ".a_b": "AB"}),
    ],
)  # fmt: skip
def test_chat_templates_of_files(tmp_path, files, given, wanted):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    made = keys(tmp_path, TOKENIZER, {"chat_template": given} if given else None)
    name = "tokenizer.chat_template"
    assert {key.removeprefix(name): v for key, v in made.items() if key.startswith(name)} == wanted
