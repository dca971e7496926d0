#!/bin/sh
# llguidance: a schema's texts have no `\u` escapes of letters, but names of properties do
#
# Version: llguidance 1.9.1. JSON lets any character be an escape, and Python's `json.dumps` writes
# all letters beyond ASCII so. Under {"type": "string"} only control characters may be escaped by
# their numbers, while names beside those that `properties` lists may have any escape. The option
# json_allow_general_unicode_escapes takes them in texts, too. A model that learned from such JSON is
# led away from its own spelling; llama.cpp's converter of schemas takes four hex digits everywhere.
. "$(dirname "$0")/common.sh"
install llguidance==1.9.1
expect 'default: refuses "\u00e9", accepts {"\u00e9": 1}, accepts "\u000b"
json_allow_general_unicode_escapes: accepts "\u00e9", accepts {"\u00e9": 1}, accepts "\u000b"' <<'END'
import json

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")
OPTION = "json_allow_general_unicode_escapes"
TEXT, OPEN = {"type": "string"}, {"type": "object", "properties": {"a": {}}}
CASES = [(TEXT, "\u00e9"), (OPEN, {"\u00e9": 1}), (TEXT, "\v")]


def verdict(schema, value, options):
    schema = json.dumps({**schema, "x-guidance": options})
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
    text = json.dumps(value)
    tokens = list(text.encode())
    taken = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
    return f"{'accepts' if taken else 'refuses'} {text}"


for name, options in (("default", {}), (OPTION, {OPTION: True})):
    print(f"{name}:", ", ".join(verdict(*each, options) for each in CASES))
END
