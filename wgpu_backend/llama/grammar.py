"""Grammars under llama-cpp-python's names, and the sampler that applies one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from wgpu_backend.errors import GrammarError, OptionError
from wgpu_backend.ops.sampling.host import Candidates
from wgpu_backend.ops.sampling.host.steps import Choice, SamplerStep
from wgpu_backend.text.grammar import Grammar, GrammarVocabulary, Matcher, apply_mask


class LlamaGrammar:
    """A grammar for `grammar=` of `Llama` and for `SamplerChain.add_grammar`."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """Return the grammar of a text in GBNF."""
        return cls(Grammar.gbnf(grammar))

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """Return the grammar of a file in GBNF.

        Raises
        ------
        OptionError
            The file cannot be read.
        """
        try:
            return cls.from_string(Path(file).read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"LlamaGrammar.from_file: {file}: {error}") from None

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """Return the grammar of a JSON schema, given as text."""
        return cls(Grammar.json_schema(json_schema))

    def reset(self) -> None:
        """Do nothing: samplers, not grammars, keep track of the text."""


def parse_grammar(grammar: object) -> Grammar:
    """Return the grammar of an argument: a `LlamaGrammar`, a `Grammar`, or a text in GBNF.

    Raises
    ------
    OptionError
        The argument has another type.
    """
    if isinstance(grammar, LlamaGrammar):
        return grammar.grammar
    if isinstance(grammar, Grammar):
        return grammar
    if isinstance(grammar, str):
        return Grammar.gbnf(grammar)
    raise OptionError(f"grammar: {type(grammar).__name__}, needs a LlamaGrammar or a text in GBNF")


def make_response_grammar(form: Mapping[str, Any] | None) -> Grammar | None:
    """Return the grammar of a ``response_format``; None for plain text.

    Raises
    ------
    OptionError
        The format has an unknown type.
    """
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        raise OptionError(f"response_format: type {kind!r}, needs text, json_object or json_schema")
    # OpenAI has the schema in "json_schema", llama-cpp-python in "schema".
    inner: object = form.get("json_schema", form)
    schema = cast("Mapping[str, Any]", inner).get("schema") if isinstance(inner, Mapping) else None
    return Grammar.json() if schema is None else Grammar.json_schema(schema)


class GrammarSampler(SamplerStep):
    """A sampler of the tokens that a grammar allows next: ``llama_sampler_init_grammar``.

    Tokens accepted before the first choice belong to the prompt, not to the grammar's text.

    Parameters
    ----------
    ends : frozenset of int
        Tokens that end a text.

    Raises
    ------
    GrammarError
        The grammar cannot be used.
    """

    name = "grammar"

    def __init__(
        self, vocabulary: GrammarVocabulary, grammar: Grammar, ends: frozenset[int]
    ) -> None:
        self._first: Matcher = vocabulary.matcher(grammar)
        self._ends = ends
        self.reset()

    def reset(self) -> None:
        """Start the grammar again from its beginning."""
        self._matcher = self._first.copy()
        self._begun = False

    def accept(self, token: int) -> None:
        """Advance the grammar by a token."""
        # An end token is not text; the grammar allows one where its text may end.
        if self._begun and token not in self._ends:
            self._matcher.take(token)

    def apply(self, choice: Choice) -> Choice:
        """Exclude tokens that the grammar does not allow."""
        self._begun = True
        mask = self._matcher.mask()
        # The mask has a bit for each token, in 32-bit words.
        if choice.candidates is None:
            left = replace(choice, logits=apply_mask(choice.logits, mask))
            there = bool(np.isfinite(left.logits.max()))
        else:
            found = choice.candidates
            fits = (mask[found.ids >> 5] >> (found.ids & 31).astype(np.uint32) & 1).astype(bool)
            left = replace(choice, candidates=Candidates(found.ids[fits], found.logits[fits]))
            there = bool(fits.any())
        if not there:
            raise GrammarError(
                "grammar: no candidate fits; add the grammar before samplers that drop tokens"
            )
        return left

    def __deepcopy__(self, memo: dict[int, Any]) -> GrammarSampler:
        # For `clone`. The start and the vocabulary never change, so copies share them.
        made = object.__new__(GrammarSampler)
        made._first, made._ends = self._first, self._ends
        made._matcher, made._begun = self._matcher.copy(), self._begun
        return made
