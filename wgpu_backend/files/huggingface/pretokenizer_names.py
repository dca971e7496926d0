"""What GGUF files call the way in which a tokenizer.json cuts text into words.

Its steps are brought to the spelling of `tokenizer.pretokenizers` and looked up there. llama.cpp's
converter knows models by what they make of a text, so it may have another name for the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from wgpu_backend.text.tokenizer.pretokenizers import PRETOKENIZERS, PreTokenizer

# Of names for the same steps, the one of the model that had them first.
_PREFERRED = (
    "gpt-2", "roberta-bpe", "llama-bpe", "smaug-bpe", "qwen2", "gpt-4o", "smollm", "starcoder",
    "deepseek-v3", "bloom", "tekken",
)  # fmt: skip
_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPELLINGS = (
    ("\r", r"\r"), ("\n", r"\n"),
    ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", _CONTRACTIONS),
    ("(?i:[sdmt]|ll|ve|re)", "(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"),
)  # fmt: skip


def pretokenizer_name(tokenizer: dict[str, Any], *, roberta: bool = False) -> str | None:
    """Name of the steps in a tokenizer.json; None where no known pre-tokenizer has these.

    Parameters
    ----------
    tokenizer : dict
        What the file holds.
    roberta : bool
        Of names that differ in the model alone, take RoBERTa's.
    """
    steps = tuple(_steps(tokenizer.get("pre_tokenizer")))
    whole_words = bool(tokenizer["model"].get("ignore_merges"))
    found = [name for name, rules in PRETOKENIZERS.items() if _same(rules, steps)]
    exact = [name for name in found if PRETOKENIZERS[name].ignore_merges == whole_words] or found
    if roberta and "roberta-bpe" in exact:
        return "roberta-bpe"
    preferred = next((name for name in _PREFERRED if name in exact), None)
    return preferred or next(iter(exact), None)


def _same(rules: PreTokenizer, steps: tuple[str, ...]) -> bool:
    return rules.byte_level and rules.expressions == steps


def _steps(step: object) -> Iterator[str]:
    """Expressions of a step, or of those in it; what only renames bytes has none."""
    if not isinstance(step, dict):
        return
    fields = cast("dict[str, Any]", step)
    kind = fields.get("type")
    if kind == "Sequence":
        for inner in cast("list[object]", fields.get("pretokenizers") or []):
            yield from _steps(inner)
    elif kind == "ByteLevel":
        if fields.get("use_regex", True):
            yield from PRETOKENIZERS["gpt-2"].expressions
    elif kind == "Digits":
        yield r"\p{N}" if fields.get("individual_digits") else r"\p{N}+"
    elif kind == "Split":
        yield _spelled(fields)
    else:
        yield f"<{kind}>"


def _spelled(split: dict[str, Any]) -> str:
    """The expression of a split as our tables spell it."""
    pattern = cast("dict[str, Any]", split.get("pattern") or {})
    expression = str(pattern.get("Regex", pattern.get("String", "")))
    for theirs, ours in _SPELLINGS:
        expression = expression.replace(theirs, ours)
    return expression
