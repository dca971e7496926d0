#!/bin/sh
# llguidance: bounds of integers in a JSON schema lose their digits above 2^53
#
# Version: llguidance 1.9.1. JSON schema's numbers have no precision limit, and identifiers of 64 bits
# are common. llguidance reads `minimum` and `maximum` as doubles: a maximum of 2^53 + 1 refuses that
# number, and one of 2^64 - 1 refuses itself. A bound of 10^21 or more is refused as a whole.
. "$(dirname "$0")/common.sh"
install llguidance==1.9.1
expect 'maximum 9007199254740993: 9007199254740992 accepted, 9007199254740993 refused
maximum 18446744073709551615: 18446744073709551614 refused, 18446744073709551615 refused
number, maximum 1e+21: Failed to generate regex for float range: min=None, max=Some(1e21)' <<'END'
import json

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def matcher(schema):
    return LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))


def verdict(schema, text):
    made, tokens = matcher(schema), list(text.encode())
    taken = made.try_consume_tokens(tokens) == len(tokens) and made.is_accepting()
    return f"{text} {'accepted' if taken else 'refused'}"


for bound in (2**53 + 1, 2**64 - 1):
    schema = {"type": "integer", "minimum": 0, "maximum": bound}
    print(f"maximum {bound}: {verdict(schema, str(bound - 1))}, {verdict(schema, str(bound))}")
print("number, maximum 1e+21:", matcher({"type": "number", "maximum": 1e21}).get_error())
END
