"""CLIP's tokenizer: lower-case words as byte pairs, the last pair of each marked ``</w>``.

Radford et al. 2021, §2.4. Spaces only separate words. Characters that no expression matches, which
is only white space, are dropped; each digit of a number is a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer.categories import pin_properties
from wgpu_backend.text.tokenizer.encoders import is_library_failure
from wgpu_backend.text.tokenizer.fragments import Splitter
from wgpu_backend.text.tokenizer.pieces import ALPHABET
from wgpu_backend.text.tokenizer.pretokenizers import PRETOKENIZERS

_END = "</w>"
_WORD = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


class ClipTokenizer:
    """An encoder of text for CLIP's text encoders.

    Parameters
    ----------
    vocabulary : Mapping of str to int
        Tokens and ids.
    merges : sequence of (str, str)
        Pairs to merge, in order of rank.
    special : Mapping of str to int
        Tokens that are found in the text as it is written, before it is lower-cased.
    unknown : str
        Token for unknown text.

    Raises
    ------
    TokenizerError
        The pairs do not fit the vocabulary.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        special: Mapping[str, int],
        unknown: str,
    ) -> None:
        self._special = dict(special)
        ordered = sorted(special.items(), key=lambda item: -len(item[0].encode("utf-8", "replace")))
        self._splitter = Splitter(ordered)
        self._texts = {number: text for text, number in {**vocabulary, **special}.items()}
        try:
            self._backend = _backend(vocabulary, merges, unknown)
        except BaseException as error:
            if not is_library_failure(error):
                raise
            raise TokenizerError(
                f"tokenizer: {len(vocabulary)} tokens and {len(merges)} merges of CLIP cannot be "
                f"built, needs them to agree: {error}"
            ) from error

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without the tokens that begin and end it.

        Parameters
        ----------
        text : str
            Any text; lone surrogates become U+FFFD.
        """
        # UTF-16 joins pairs of surrogates; only lone ones are then replaced.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = []
        for fragment in self._splitter.split(text):
            known = isinstance(fragment, int)
            ids += [fragment] if known else self._backend.encode(fragment).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, apart from case and spaces; for messages."""
        controls = set(self._special.values())
        text = "".join(self._texts.get(number, "") for number in ids if number not in controls)
        raw = bytes(ALPHABET.get(char, 0x3F) for char in text.replace(_END, "Ġ"))
        return raw.decode("utf-8", "replace").strip()


def _backend(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], unknown: str
) -> Tokenizer:
    backend = Tokenizer(
        models.BPE(
            vocab=dict(vocabulary),
            merges=list(merges),
            unk_token=unknown,
            end_of_word_suffix=_END,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    # Words are split again as in GPT-2, which separates contractions.
    [inner] = PRETOKENIZERS["gpt-2"].expressions
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pin_properties(_WORD)), "removed", invert=True),
            pre_tokenizers.Split(Regex(pin_properties(inner)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return backend
