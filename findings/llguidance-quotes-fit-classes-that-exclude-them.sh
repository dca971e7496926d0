#!/bin/sh
# llguidance: a quotation mark fits a schema's class `[^"]`
#
# Version: llguidance 1.9.1. In a `pattern`, a class with all control characters but the line break is taken for one
# with the quotation mark and the backslash, which JSON escapes: "^[^\"]$" accepts a quotation mark. With one control
# character less, "^[^\"\t]$", it does not. A shell command, a CSV cell or a key that must not have quotes may have some.
. "$(dirname "$0")/common.sh"
install llguidance==1.9.1
expect '^[^"]$: " accepted, \ accepted, a accepted
^[^\\]$: " accepted, \ accepted, a accepted
^[^"\t]$: " refused, \ accepted, a accepted
^[ !#-~]$: " refused, \ accepted, a accepted' <<'END'
import json

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def show(pattern):
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "pattern": pattern}))
    found = []
    for text in ('"', "\\", "a"):
        matcher, tokens = LLMatcher(tokenizer, grammar), list(json.dumps(text).encode())
        taken = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        found.append(f"{text} {'accepted' if taken else 'refused'}")
    print(f"{pattern}:", ", ".join(found))


show('^[^"]$')
show(r"^[^\\]$")
show(r'^[^"\t]$')
show("^[ !#-~]$")
END
