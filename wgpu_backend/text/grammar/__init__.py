"""Grammars that answers keep to: which tokens may follow what was made so far.

::

    Grammar ─ checked in a process of its own ─▶ GrammarVocabulary.matcher ─▶ Matcher
    Matcher: mask ─ a token is chosen ─ take ─ forced tokens ─ mask ─ … ─ ended

``grammar.py`` is what a caller says, `schemas.py` and `number_ranges.py` prepare JSON schemas,
`gbnf.py` reads GBNF and `gbnf_lark.py` writes it for the compiler, `checking.py` and
`compile_alone.py` keep hostile grammars from this process, `vocabulary.py` fits them to a model's
tokens, `matcher.py` follows one answer, and `masks.py` applies what it allows to logits on the
host. The parser is llguidance's.
"""

from wgpu_backend.text.grammar.grammar import Grammar
from wgpu_backend.text.grammar.masks import masked, words_of
from wgpu_backend.text.grammar.matcher import Matcher
from wgpu_backend.text.grammar.vocabulary import GrammarVocabulary, tag_id

__all__ = ["Grammar", "GrammarVocabulary", "Matcher", "masked", "tag_id", "words_of"]
