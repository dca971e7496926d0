"""Grammars that constrain answers: which tokens may follow the text so far.

::

    Grammar ─ compiled once in a process of its own ─▶ GrammarVocabulary.matcher ─▶ Matcher
    Matcher: mask ─ a token is chosen ─ take ─ forced tokens ─ mask ─ … ─ end

``grammar.py`` is the public class, and prepares JSON schemas. ``gbnf.py`` parses GBNF
and ``gbnf_lark.py`` translates it for the compiler. ``vocabulary.py`` and
``compile_alone.py`` compile hostile grammars outside this process; the former also fits them to a
model's tokens. ``matcher.py`` follows one answer, and ``masks.py`` applies a mask to logits on the
host. The parser is llguidance's.
"""

from wgpu_backend.text.grammar.grammar import Grammar
from wgpu_backend.text.grammar.masks import apply_mask, mask_words
from wgpu_backend.text.grammar.matcher import Matcher
from wgpu_backend.text.grammar.vocabulary import GrammarVocabulary, tag_id

__all__ = ["Grammar", "GrammarVocabulary", "Matcher", "apply_mask", "mask_words", "tag_id"]
