r"""Rules by which byte-pair vocabularies split text into words, by ``tokenizer.ggml.pre``.

The expressions are facts of the models: a vocabulary merges correctly only within the words it was
trained on. They are applied in order, each to the pieces that the one before it left; unmatched
text stays a piece of its own. Three differ from their models' files to save time on hostile text,
with equal matches: digit groups look ahead once per run of digits, and ``\s+$`` only starts where a
run of spaces starts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer.vocabulary import read_text

_log = logging.getLogger("wgpu_backend.tokenizer")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The rules of a named pre-tokenizer.

    Parameters
    ----------
    expressions : tuple of str
        Regular expressions in Oniguruma's syntax, applied in order.
    ignore_merges : bool
        Whether a word that is a token needs no merges to become it.
    add_bos : bool
        Whether text starts with the BOS token unless the file sets it.
    byte_level : bool
        Whether words are bytes in GPT-2's alphabet instead of plain text with ``▁`` for a space.
    clean_spaces : bool
        Whether llama.cpp's detokeniser removes spaces before punctuation.
    """

    expressions: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True
    clean_spaces: bool = False


def _any(*alternatives: str) -> str:
    return "|".join(alternatives)


def _ranges(*pairs: str) -> str:
    """Spell ``"4E00-9FFF"`` as the characters of a class; no tool can normalise hex digits."""
    return "".join("-".join(chr(int(end, 16)) for end in pair.split("-")) for pair in pairs)


_GPT2_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+"
_BREAKS = r"\s*[\r\n]+"
_SPACES = r"\s+(?!\S)|\s+"
_TRIPLE = r"\p{N}{1,3}"

_GPT2 = _any(_GPT2_CONTRACTIONS, r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", r"\s+(?!\S)")
_LLAMA3_TAIL = _any(_SYMBOLS + r"[\r\n]*", _BREAKS, _SPACES)
_LLAMA3 = _any(_CONTRACTIONS, _WORD, _TRIPLE, _LLAMA3_TAIL)
_QWEN2 = _any(_CONTRACTIONS, _WORD, r"\p{N}", _LLAMA3_TAIL)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

_CASCADE = _any(
    *(rf"\s{{{length}}}(?!\S)" for length in (512, 256, 128, 64, 32, 16, 8, 4)),
    r"\s{1,2}(?!\S)",
    r"\s{1}",
)


def _match_cased(upper: str, lower: str, suffix: str = "") -> str:
    """Return an expression for words with capitals first, by the model's own classes of letters."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return _any(f"{start}{upper}*{lower}+{suffix}", f"{start}{upper}+{lower}*{suffix}")


_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASHED_TAIL = _any(_SYMBOLS + r"[\r\n/]*", _BREAKS, _SPACES)
_GPT4O = _any(_match_cased(_UPPER, _LOWER, _CONTRACTIONS + "?"), _TRIPLE, _SLASHED_TAIL)

_NOT_HAN = r"&&[^\p{Han}]]"
_KIMI_K2 = _any(
    r"\p{Han}+",
    _match_cased(_UPPER[:-1] + _NOT_HAN, _LOWER[:-1] + _NOT_HAN, _CONTRACTIONS + "?"),
    _TRIPLE,
    _LLAMA3_TAIL,
)

_HAN_KANA = f"[{_ranges('4E00-9FA5', '3040-309F', '30A0-30FF')}]+"
_ASCII_MARKED = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_MARKED = _any(_ASCII_MARKED, r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+")
_DEEPSEEK3 = (
    _TRIPLE,
    _HAN_KANA,
    _any(_MARKED, r" ?[\p{P}\p{S}]+[\r\n]*", _BREAKS, _SPACES),
)
_SPARK = (
    _TRIPLE,
    _HAN_KANA,
    _any(_MARKED, r" ?[\p{P}\p{S}]+", r"[\r\n]", _SPACES),
    r"\p{N}",
)

# Groups of three counted from the end of a run of digits. The lookbehind keeps it linear.
_GROUPED_DIGITS = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})+(?!\p{N}))|\p{N}{3}|\p{N}{1,2}"
_BOUNDED_DIGITS = _any(
    r"(?<!\d)\d{1,3}(?=(?:\d{3})*\b)",
    # Continues the match before it, so the run is known to end at a boundary.
    r"\G(?<=\d)\d{3}",
)
FASTER = {r"\s+$": r"(?<!\s)\s+$", r"\d{1,3}(?=(?:\d{3})*\b)": _BOUNDED_DIGITS}
"""Expressions of models' files whose time is quadratic on hostile text, and others that match the
same, for every way to cut at what they match."""

_ASIAN = _ranges(
    "4E00-9FFF", "3400-4DBF", "F900-FAFF", "3040-309F", "30A0-30FF", "FF65-FF9F", "2F00-2FDF",
    "0E40-0E7F", "0E80-0EFF", "1780-17FF", "1000-109F", "AA60-AA7F", "A9E0-A9FF", "AC00-D7AF",
    "1100-11FF",
)  # fmt: skip

# The cased letters as Unicode had them when the DeepSeek LLM vocabulary was made.
_DEEPSEEK_LETTERS = _ranges(
    "41-5A", "61-7A", "B5", "C0-D6", "D8-F6", "F8-1BA", "1BC-1BF", "1C4-293", "295-2AF",
    "370-373", "376", "377", "37B-37D", "37F", "386", "388-38A", "38C", "38E-3A1", "3A3-3F5",
    "3F7-481", "48A-52F", "531-556", "10A0-10C5", "13A0-13F5", "13F8-13FD", "1C90-1CBA",
    "1CBD-1CBF", "1D00-1D2B", "1D6B-1D77", "1D79-1D9A", "1E00-1F15", "1F18-1F1D", "1F20-1F45",
    "1F48-1F4D", "1F50-1F57", "1F59", "1F5B", "1F5D", "1F5F-1F7D", "1F80-1FB4", "1FB6-1FBC",
    "1FBE", "1FC2-1FC4", "1FC6-1FCC", "1FD0-1FD3", "1FD6-1FDB", "1FE0-1FEC", "1FF2-1FF4",
    "1FF6-1FFC", "2102", "2107", "210A-2113", "2115", "2119-211D", "2124", "2126", "2128",
    "212A-212D", "212F-2134", "2139", "213C-213F", "2145-2149", "214E", "2183", "2184",
    "2C00-2C7B", "2C7E-2CE4", "2CEB-2CEE", "2CF2", "2CF3", "A640-A66D", "A680-A69B",
    "A722-A76F", "A771-A787", "A78B-A78E", "AB70-ABBF", "FB00-FB06", "FB13-FB17", "FF21-FF3A",
    "FF41-FF5A", "10400-1044F", "104B0-104D3", "104D8-104FB", "10C80-10CB2", "10CC0-10CF2",
    "118A0-118DF", "1E900-1E943",
)  # fmt: skip
# The range from 0800 contains white space, which is excluded.
_CJK_AND_HANGUL = f"[{_ranges('4E00-9FA5', '0800-4E00', 'AC00-D7FF')}&&\\S]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    rf"\s?[!-/:-~{_ranges('FF01-FF0F', 'FF1A-FF5E', '2018-201F', '3001-3002')}]+",
    r"(?<!\s)\s+$",
    _CJK_AND_HANGUL,
    r"\p{N}+",
)
_YOUTU_MARKS = "！…“”‘’—：；，" + _ranges("3001-303F", "FE30-FE4F")
_YOUTU = (
    _any(
        f"[{_ranges('AC00-D7A3', '3131-318E')}]+",
        f"[{_YOUTU_MARKS}]+",
        f"[{_ranges('3105-312F')}]+",
        _HAN_KANA,
    ),
    _any(_match_cased(_UPPER, _LOWER, _CONTRACTIONS + "?"), r"\p{N}", _SLASHED_TAIL),
)
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_EXAONE_MOE = _any(
    _CONTRACTIONS,
    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
    r"\p{N}",
    _SYMBOLS + r"[\r\n/]?",
    r"\s*[\r\n]",
    _SPACES,
)
_QWEN35 = _any(
    _CONTRACTIONS,
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"\p{N}",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    _BREAKS,
    _SPACES,
)
_BAILING = _any(
    "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",
    _WORD,
    r"\p{N}",
    _SYMBOLS + r"[\r\n]*",
    r"\s*[\r\n]",
    _SPACES,
)
_SEED_CODER = _any(_CONTRACTIONS, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _BREAKS, _SPACES)
_LINES = r"[^\n]+|[\n]+"

_llama3 = PreTokenizer((_LLAMA3,), clean_spaces=True)
_gpt4o = PreTokenizer((_GPT4O,))
_qwen2 = PreTokenizer((_QWEN2,))
_sentencepiece = PreTokenizer((_LINES,), byte_level=False)
_digits_then_gpt2 = PreTokenizer((r"\p{N}", _GPT2), clean_spaces=True)

_TABLE: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "default",
        PreTokenizer(
            (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"), clean_spaces=True
        ),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        replace(_llama3, ignore_merges=True, add_bos=True),
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", _llama3),
    (
        "jais-2",
        PreTokenizer(
            (_any(_CONTRACTIONS, _WORD, _TRIPLE, _SYMBOLS + r"[\r\n]*", _BREAKS, _CASCADE),),
            clean_spaces=True,
        ),
    ),
    ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM)),
    (
        "deepseek-coder",
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_AND_HANGUL, r"\p{N}")),
    ),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer(_DEEPSEEK3)),
    ("spark2_5", PreTokenizer(_SPARK)),
    ("youtu", PreTokenizer(_YOUTU, ignore_merges=True)),
    (
        "falcon",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"), clean_spaces=True),
    ),
    ("starcoder refact codeshell exaone minerva-7b mellum2", _digits_then_gpt2),
    ("command-r smollm", replace(_digits_then_gpt2, clean_spaces=False)),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert"
        " jina-v1-en jina-v2-code roberta-bpe mpt olmo jais exaone4",
        PreTokenizer((_GPT2,), clean_spaces=True),
    ),
    ("trillion granite-docling", PreTokenizer((_GPT2,))),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2", _qwen2),
    ("stablelm2 megrez", replace(_qwen2, clean_spaces=True)),
    ("qwen35", PreTokenizer((_QWEN35,))),
    ("ufakzeka", PreTokenizer((_any(_WORD, r"\p{N}", _LLAMA3_TAIL),))),
    ("laguna", PreTokenizer((_LINES, _QWEN2))),
    ("poro-chat", PreTokenizer((_BLOOM,))),
    ("bloom gpt3-finnish", PreTokenizer((_BLOOM,), clean_spaces=True)),
    ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
    (
        "tekken",
        PreTokenizer(
            (_any(_match_cased(_UPPER, _LOWER), r"\p{N}", _SLASHED_TAIL),),
            ignore_merges=True,
            add_bos=True,
        ),
    ),
    ("chameleon", PreTokenizer(_CHAMELEON, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _gpt4o),
    ("granite-embed-multi-97m", replace(_gpt4o, ignore_merges=True)),
    ("tiny_aya cohere2moe", PreTokenizer((_BOUNDED_DIGITS, _GPT4O))),
    ("kimi-k2", PreTokenizer((_KIMI_K2,))),
    ("superbpe", PreTokenizer((r"\p{N}+", _GROUPED_DIGITS))),
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
    ("seed-coder", PreTokenizer((_SEED_CODER,))),
    ("afmoe", PreTokenizer((_GROUPED_DIGITS, f"[{_ASIAN}]+", _DEEPSEEK3[2]))),
    ("exaone-moe", PreTokenizer((_EXAONE_MOE,))),
    (
        "minicpm5",
        PreTokenizer(
            (_TRIPLE, _any(_CONTRACTIONS, _WORD, r"\p{N}+", _LLAMA3_TAIL)),
            ignore_merges=True,
            clean_spaces=True,
        ),
    ),
    ("gemma4 granite-embed-multi-311m", replace(_sentencepiece, add_bos=True, clean_spaces=True)),
    ("sarvam-moe", _sentencepiece),
)

PRETOKENIZERS: dict[str, PreTokenizer] = {
    name: pretokenizer for names, pretokenizer in _TABLE for name in names.split()
}
"""All supported values of ``tokenizer.ggml.pre``."""
PLAIN = PreTokenizer((), byte_level=False)
"""Rules that split nothing."""
_WORDS = PreTokenizer((), byte_level=False, clean_spaces=True)


def find_rules(metadata: Mapping[str, object], model: str, override: str | None) -> PreTokenizer:
    """Find the pre-tokenizer of a model file.

    Parameters
    ----------
    metadata : Mapping
        The file's key-value pairs.
    model : str
        The algorithm, as the file names it.
    override : str or None
        A name to use instead of the file's.

    Raises
    ------
    TokenizerError
        There is no pre-tokenizer with this name.
    """
    if model not in ("gpt2", "gemma4"):
        return _WORDS if model == "bert" else PLAIN
    name = override or ("gemma4" if model == "gemma4" else read_text(metadata, "pre"))
    if not name:
        _log.warning("metadata has no tokenizer.ggml.pre, using 'default': text may be cut wrongly")
        name = "default"
    if name not in PRETOKENIZERS:
        raise TokenizerError(
            f"tokenizer: pre-tokenizer is {name!r}, needs one of "
            f"{', '.join(sorted(PRETOKENIZERS))}; choose one by pretokenizer="
        )
    return PRETOKENIZERS[name]
