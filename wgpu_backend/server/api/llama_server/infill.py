"""Fill-in-the-middle prompts, with the vocabulary's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wgpu_backend.server.core.request import RequestError
from wgpu_backend.text.tokenizer import Tokenizer

_ROLES = ("fim_pre", "fim_suf", "fim_mid")
# llama-server's limit of tokens around a gap.
_BATCH = 2048
# Most characters of a token: the rest of a text is not tokenized, since it cannot be kept.
_LONGEST = 256
# llama-server's names: models were trained on repositories in this form.
_PROJECT, _FILE, _CHUNK = "myproject\n", "filename\n", "\n\n--- snippet ---\n\n"


def infill(tokenizer: Tokenizer, prefix: str, suffix: str) -> list[int]:
    """Return the prompt tokens for filling the gap between two texts.

    Raises
    ------
    RequestError
        The vocabulary has no tokens for that.
    """
    _require_roles(tokenizer)
    before, after = _tokenize(tokenizer, prefix), _tokenize(tokenizer, suffix)
    return [*_begin_text(tokenizer), *_surround(tokenizer, before, after)]


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap in a file of a repository.

    Parameters
    ----------
    prefix, suffix : str
        Text around it; of long texts the parts next to the gap are kept.
    begun : str
        Beginning of the missing text.
    files : sequence of (str, str)
        Names and texts of other files, the most important last.
    """

    prefix: str
    suffix: str
    begun: str = ""
    files: Sequence[tuple[str, str]] = ()

    def tokens(self, tokenizer: Tokenizer, room: int, limit: int) -> list[int]:
        """Return the prompt tokens for filling the gap.

        Parameters
        ----------
        room : int
            Tokens that the context holds.
        limit : int
            Tokens to generate; a quarter of the context if it is not above 0.

        Raises
        ------
        RequestError
            The vocabulary has no tokens for that.
        """
        _require_roles(tokenizer)
        # Room for the answer, and characters that may matter.
        kept, most = limit if limit > 0 else room // 4, _LONGEST * room
        # llama-server divides a batch in this ratio: 3/4 before the gap, 1/4 after it.
        batch = min(_BATCH, max(room - kept, room // 2))
        begun, bos = _tokenize(tokenizer, self.begun), _begin_text(tokenizer)
        before = _tokenize(tokenizer, self.prefix[-most:])[-max(3 * (batch // 4) - len(bos), 1) :]
        after = _tokenize(tokenizer, self.suffix[:most])[: max(batch // 4 - 3 - len(begun), 0)]
        around = _surround(tokenizer, [*before, *begun], after)
        left = room - kept - len(bos) - len(around)
        return [
            *bos,
            *(self._tokenize_others(tokenizer, most)[-left:] if left > 0 else ()),
            *around,
        ]

    def _tokenize_others(self, tokenizer: Tokenizer, most: int) -> list[int]:
        """Return the tokens of the other files' last characters, and of the header of this file."""
        special = tokenizer.special_ids
        found = (
            [special["fim_rep"], *_tokenize(tokenizer, _PROJECT)] if "fim_rep" in special else []
        )
        for name, text in self.files:
            if "fim_sep" in special:
                found += [special["fim_sep"], *_tokenize(tokenizer, f"{name}\n")]
            else:
                found += _tokenize(tokenizer, _CHUNK)
            found += _tokenize(tokenizer, text[-most:])
        if "fim_sep" in special:
            found += [special["fim_sep"], *_tokenize(tokenizer, _FILE)]
        return found


def _require_roles(tokenizer: Tokenizer) -> None:
    if missing := [role for role in _ROLES if role not in tokenizer.special_ids]:
        needed = ", ".join(missing)
        raise RequestError(400, f"the model does not infill: its vocabulary has no {needed} token")


def _surround(tokenizer: Tokenizer, before: Sequence[int], after: Sequence[int]) -> list[int]:
    prefix, suffix, middle = (tokenizer.special_ids[role] for role in _ROLES)
    return [prefix, *before, suffix, *after, middle]


def _tokenize(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False) if text else []


def _begin_text(tokenizer: Tokenizer) -> list[int]:
    bos = tokenizer.bos_id
    return [bos] if tokenizer.add_bos and bos is not None else []
