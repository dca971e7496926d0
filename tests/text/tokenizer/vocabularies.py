"""Tiny vocabularies of each kind, as the metadata of a model file."""

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def _alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]


def metadata(model, tokens, types=None, **keys):
    """Put a token table under the keys of a GGUF file."""
    types = [NORMAL] * len(tokens) if types is None else types
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
    } | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def byte_pairs(merges=(), special=(), pre="gpt-2", **keys):
    """GPT-2's alphabet, what the merges make of it, and (text, type) pairs at the end."""
    tokens = _alphabet()
    for merge in merges:
        space = merge.index(" ", 1)
        text = merge[:space] + merge[space + 1 :]
        if text not in tokens:
            tokens.append(text)
    types = [NORMAL] * len(tokens) + [kind for _, kind in special]
    tokens += [text for text, _ in special]
    merges = list(merges) or ["a b"]
    if "ab" not in tokens and merges == ["a b"]:
        tokens.insert(256, "ab")
        types.insert(256, NORMAL)
    return metadata("gpt2", tokens, types, pre=pre, merges=merges, **keys)


def sentencepiece(pieces, special=(), **keys):
    """Three control tokens, the 256 bytes, scored pieces and (text, type) pairs at the end."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL, *([BYTE] * 256)]
    scores = [0.0] * len(tokens)
    for piece, score in pieces.items():
        tokens.append(piece)
        types.append(NORMAL)
        scores.append(score)
    for text, kind in special:
        tokens.append(text)
        types.append(kind)
        scores.append(0.0)
    return metadata("llama", tokens, types, scores=np.array(scores, np.float32), **keys)


def spelled(tokenizer, ids):
    """Texts of tokens, as the file spells them."""
    return [tokenizer.token_text(token) for token in ids]
