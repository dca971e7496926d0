"""Prompts for what is missing between two texts, with a vocabulary's own tokens for that."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.server.wanted import RequestError
from wgpu_backend.tokenizer import Tokenizer

_ROLES = ("fim_pre", "fim_suf", "fim_mid")


def infill(tokenizer: Tokenizer, prefix: str, suffix: str, extra: Sequence[str] = ()) -> list[int]:
    """Tokens behind which a model writes what stands between two texts.

    Parameters
    ----------
    tokenizer : Tokenizer
    prefix, suffix : str
    extra : sequence of str
        Texts that help, such as other files.

    Raises
    ------
    RequestError
        The vocabulary has no tokens for that.
    """
    special = tokenizer.special_ids
    if missing := [role for role in _ROLES if role not in special]:
        needed = ", ".join(missing)
        raise RequestError(400, f"the model does not infill: its vocabulary has no {needed} token")
    before, behind, middle = (special[role] for role in _ROLES)

    def plain(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False) if text else []

    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    context = [token for text in extra for token in plain(text)]
    return [*bos, *context, before, *plain(prefix), behind, *plain(suffix), middle]
