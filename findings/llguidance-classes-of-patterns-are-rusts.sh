#!/bin/sh
# llguidance: a class in a JSON schema's pattern has Rust's operators
#
# Version: llguidance 1.9.1. JSON Schema refers to ECMA-262 for `pattern`. There `&&`, `--` and a `[` within a class
# are letters and ranges. llguidance passes the pattern to Rust's `regex`, in which they are operators: "[+--]"
# (from + to -) allows + alone, "[a&&b]" is an unsatisfiable schema, "[[]" is a syntax error, and "[[:alpha:]]" (one
# of [:alph, then a bracket) is any letter.
. "$(dirname "$0")/common.sh"
install llguidance==1.9.1
expect '^[+--]$: + accepted, "," refused, - refused
^[a&&b]$: Unsatisfiable schema: Regex is empty:  (SearchRegex /^[a&&b]$/)
^[[]$: regex parse error:
^[[:alpha:]]$: b accepted, :] refused' <<'END'
import json

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def show(pattern, *texts):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "pattern": pattern}))
    if LLMatcher(tokenizer, grammar).is_error():
        print(f"{pattern}:", LLMatcher(tokenizer, grammar).get_error().splitlines()[0])
        return
    found = []
    for text in texts:
        matcher, tokens = LLMatcher(tokenizer, grammar), list(json.dumps(text).encode())
        taken = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        shown = json.dumps(text) if text == "," else text
        found.append(f"{shown} {'accepted' if taken else 'refused'}")
    print(f"{pattern}:", ", ".join(found))


show("^[+--]$", "+", ",", "-")
show("^[a&&b]$")
show("^[[]$")
show("^[[:alpha:]]$", "b", ":]")
END
