#!/bin/sh
# llguidance: `\d` and `\w` mean one set in a schema's pattern and another in a grammar
#
# Version: llguidance 1.9.1. In `pattern` of a JSON schema, `\d` and `\w` are ASCII, as in ECMAScript.
# In a regular expression of a Lark grammar they are Unicode, as in Rust's regex. A schema that is
# rewritten as a grammar therefore lets through digits that `int()` takes and many parsers do not.
. "$(dirname "$0")/common.sh"
install llguidance==1.9.1
expect '\d, an Arabic-Indic three: pattern refuses, grammar accepts
\w, an e with an acute accent: pattern refuses, grammar accepts' <<'END'
import json

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def verdict(grammar, text):
    matcher, tokens = LLMatcher(tokenizer, grammar), list(text.encode())
    taken = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
    return "accepts" if taken else "refuses"


for mark, name, letter in (
    (r"\d", "an Arabic-Indic three", "\u0663"),
    (r"\w", "an e with an acute accent", "\u00e9"),
):
    schema = json.dumps({"type": "string", "pattern": f"^{mark}$"})
    pattern = verdict(LLMatcher.grammar_from_json_schema(schema), f'"{letter}"')
    grammar = verdict(LLMatcher.grammar_from_lark(f"start: /{mark}/"), letter)
    print(f"{mark}, {name}: pattern {pattern}, grammar {grammar}")
END
