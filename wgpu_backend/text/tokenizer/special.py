"""Control tokens, and the ones among them that end a generation.

Files are often wrong about both, so llama.cpp repairs them by the texts of the tokens, and so does
this. Otherwise a user could type a control token that is marked as text, and an end token marked as
text would never end a generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer.vocabulary import (
    TokenType,
    Vocabulary,
    read_flag,
    read_id,
    read_ids,
    read_text,
)

_END_OF_TURN = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
)  # fmt: skip
_END_OF_GENERATION = (
    *_END_OF_TURN, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>",
    "[EOS]", "<eos>", "<turn|>", "<|tool_response>", "[e~[",
)  # fmt: skip

# Each role: its keys in the file, the newest first, and its usual texts.
_ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bos": (("bos_token_id",), ()),
    "eos": (("eos_token_id",), ()),
    "unk": (("unknown_token_id",), ()),
    # The format itself misspells this key.
    "sep": (("seperator_token_id",), ()),
    "pad": (("padding_token_id",), ()),
    "mask": (("mask_token_id",), ()),
    "eot": (("eot_token_id",), _END_OF_TURN),
    "eom": (("eom_token_id",), ("<|eom_id|>",)),
    "fim_pre": (
        ("fim_pre_token_id", "prefix_token_id"),
        ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
         "<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        ("fim_suf_token_id", "suffix_token_id"),
        ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
         "<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        ("fim_mid_token_id", "middle_token_id"),
        ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
         "<|code_middle|>", "<|middle|>"),
    ),
    "fim_pad": (
        ("fim_pad_token_id",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")
    ),
    "fim_rep": (
        ("fim_rep_token_id",),
        ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ),
    "fim_sep": (("fim_sep_token_id",), ("<|file_sep|>",)),
}  # fmt: skip

# Defaults of a file without the keys. GPT-2's old default of 11 is a comma in most vocabularies.
_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "bert": {"bos": 101, "sep": 102, "unk": 100, "pad": 0, "mask": 103},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
}
_ADDS_BOS = ("llama", "bert")
_ADDS_EOS = ("t5",)
# [CLS] is added whatever add_bos_token is, as in llama.cpp.
_ADDS_ALWAYS = (("bert", "bos"),)

# As in llama.cpp: an infill also ends where padding or another file would follow.
_ENDING_ROLES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# Control tokens leave no text, but the parser of the Harmony format needs these.
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
_PHI3_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")
_JINA_CODES = ("jina-v2-de", "jina-v2-es", "jina-v2-code")

_SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)
_MATCHED = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The tokens that mean more than their text.

    Parameters
    ----------
    roles : dict of str to int
        Ids by role: bos, eos, unk, sep, pad, mask, eot, eom, fim_pre, fim_suf, fim_mid, fim_pad,
        fim_rep, fim_sep; a role without a token is absent.
    eog : frozenset of int
        Ids that end a generation.
    control : frozenset of int
        Ids that no text may become: control and unknown tokens.
    matched : list of int
        Ids found in text before anything else, the longest text first.
    lstrip, rstrip : frozenset of int
        Ids that absorb the white space before and after them.
    add_bos, add_eos : bool
        Whether a prompt starts with BOS and ends with EOS.
    types : list of int
        The repaired ``TokenType`` of each token.
    """

    roles: dict[str, int]
    eog: frozenset[int]
    control: frozenset[int]
    matched: list[int]
    lstrip: frozenset[int]
    rstrip: frozenset[int]
    add_bos: bool
    add_eos: bool
    types: list[int]


def read_special(
    metadata: Mapping[str, object], vocabulary: Vocabulary, *, add_bos: bool = False
) -> SpecialTokens:
    """Find the special tokens of a vocabulary and repair their types.

    Parameters
    ----------
    metadata : Mapping
        The file's key-value pairs.
    vocabulary : Vocabulary
        Its token table.
    add_bos : bool, optional
        The pre-tokenizer's default for a file without the key.

    Raises
    ------
    TokenizerError
        An id is out of range, or a token to be added is not named.
    """
    types = list(vocabulary.types)
    roles = _find_roles(metadata, vocabulary, types)
    eog = _find_endings(vocabulary, roles, types) | read_ids(metadata, "eos_token_ids", len(types))
    control = frozenset(i for i, kind in enumerate(types) if kind in _SPECIAL)
    matched = [i for i, kind in enumerate(types) if kind in _MATCHED]
    matched.sort(key=lambda i: len(vocabulary.texts[i].encode("utf-8", "replace")), reverse=True)
    lstrip, rstrip = _find_strips(metadata, vocabulary, matched)
    model = vocabulary.model
    return SpecialTokens(
        roles=roles,
        eog=eog,
        control=control,
        matched=matched,
        lstrip=lstrip,
        rstrip=rstrip,
        add_bos=_adds(model, metadata, "bos", roles, default=add_bos or model in _ADDS_BOS),
        add_eos=_adds(model, metadata, "eos", roles, default=model in _ADDS_EOS),
        types=types,
    )


def plays_roles(metadata: Mapping[str, object], roles: Iterable[str]) -> bool:
    """Return whether a file has a token for each of these roles, by id or by text."""
    texts = metadata.get("tokenizer.ggml.tokens")
    there = set(cast("list[object]", texts) if isinstance(texts, list) else ())
    return all(
        any("tokenizer.ggml." + key in metadata for key in _ROLES[role][0])
        or not there.isdisjoint(_ROLES[role][1])
        for role in roles
    )


def _find_roles(
    metadata: Mapping[str, object], vocabulary: Vocabulary, types: list[int]
) -> dict[str, int]:
    roles: dict[str, int] = {}
    size = len(vocabulary.texts)
    for role, (keys, texts) in _ROLES.items():
        named = [read_id(metadata, key, size) for key in keys]
        found = next((i for i in named if i is not None), None)
        default = _DEFAULTS.get(vocabulary.model, {}).get(role)
        declared = any("tokenizer.ggml." + key in metadata for key in keys)
        if found is None and not declared and default is not None and default < size:
            found = default
        if found is None:
            found = next((vocabulary.ids[text] for text in texts if text in vocabulary.ids), None)
            if found is not None:
                types[found] = TokenType.CONTROL
        if found is not None:
            roles[role] = found
    return roles


def _find_endings(
    vocabulary: Vocabulary, roles: dict[str, int], types: list[int]
) -> frozenset[int]:
    ids = vocabulary.ids
    named = {text: ids[text] for text in _END_OF_GENERATION if text in ids}
    for token in named.values():
        types[token] = TokenType.CONTROL
    for token in _present(ids, _ALWAYS_SHOWN):
        types[token] = TokenType.USER_DEFINED
    eog = {roles[role] for role in _ENDING_ROLES if role in roles} | set(named.values())
    if "<|end|>" in named and all(
        any(text in named for text in pair)
        for pair in (("<|call|>", "<|calls|>"), ("<|return|>", "<|flush|>"))
    ):
        # In these formats it ends a message, and another message of the same answer follows.
        eog.discard(named["<|end|>"])
        types[named["<|end|>"]] = TokenType.USER_DEFINED
    if {"<|tool_response>", "</s>"} <= named.keys():
        # An HTML tag in these vocabularies.
        eog.discard(named["</s>"])
        types[named["</s>"]] = TokenType.NORMAL
    return frozenset(eog)


def _find_strips(
    metadata: Mapping[str, object], vocabulary: Vocabulary, matched: list[int]
) -> tuple[frozenset[int], frozenset[int]]:
    ids = vocabulary.ids
    # Files have no key for this, so llama.cpp decides by names as well.
    name = str(metadata.get("general.name", "")).lower()
    pre = read_text(metadata, "pre") or ""
    architecture = str(metadata.get("general.architecture", ""))
    if any(code in pre for code in _JINA_CODES) or any(
        code in architecture for code in ("nomic-bert-moe", "jina-bert-v3")
    ):
        return frozenset(_present(ids, ["<mask>"])), frozenset()
    if "phi-3" in name or "phi3" in name:
        rstrip = {*matched, *_present(ids, ["</s>"])} - set(_present(ids, _PHI3_KEEPS_SPACE))
        return frozenset(), frozenset(rstrip)
    if "modern-bert" in name:
        return frozenset(_present(ids, ["[MASK]"])), frozenset()
    return frozenset(), frozenset()


def _present(ids: dict[str, int], texts: Iterable[str]) -> list[int]:
    return [ids[text] for text in texts if text in ids]


def _adds(
    model: str, metadata: Mapping[str, object], role: str, roles: dict[str, int], *, default: bool
) -> bool:
    declared = read_flag(metadata, f"add_{role}_token")
    if declared and role not in roles:
        raise TokenizerError(
            f"tokenizer: add_{role}_token is true but {role}_token_id is missing, needs both"
        )
    wanted = default if declared is None or (model, role) in _ADDS_ALWAYS else declared
    return wanted and role in roles
