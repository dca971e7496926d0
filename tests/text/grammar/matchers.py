"""Matchers of grammars over bytes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class _Bytes:
    eos_token_id, bos_token_id = 256, None
    tokens = (*(bytes([i]) for i in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text):
        return list(text)


@cache
def _library() -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()))


def matcher_of(source: str) -> LLMatcher:
    """A matcher of a grammar in Lark."""
    from llguidance import LLMatcher

    made = LLMatcher(_library(), LLMatcher.grammar_from_lark(source), log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def takes(matcher: LLMatcher, text: str) -> bool:
    """Whether a whole text fits, byte by byte."""
    matcher, data = matcher.deep_copy(), list(text.encode())
    if matcher.validate_tokens(data) < len(data):
        return False
    matcher.consume_tokens(data)
    return matcher.is_accepting()
