#!/bin/sh
# outlines_core: `allOf` of a JSON schema writes its members one after the other
#
# Version: outlines_core 0.2.14. A value has to fit all schemas of an `allOf`. Here the regular expressions of
# the members are joined into a sequence: two members that both allow true or false give "truefalse", which is
# not JSON, and no answer that fits the schema is allowed. An `allOf` of one member is right.
# Schemas that combine a `$ref` with bounds, as generators for OpenAPI and Go write them, meet this.
. "$(dirname "$0")/common.sh"
install outlines_core==0.2.14
expect '{"allOf": [{"type": "boolean"}]}: true accepted, truefalse refused
{"allOf": [{"type": "boolean"}, {"type": "boolean"}]}: true refused, truefalse accepted
{"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}: "b" refused, "a""c" accepted' <<'END'
import json
import re

from outlines_core.json_schema import build_regex_from_schema

boolean = {"type": "boolean"}
cases = [
    ([boolean], "true", "truefalse"),
    ([boolean, boolean], "true", "truefalse"),
    ([{"enum": ["a", "b"]}, {"enum": ["b", "c"]}], '"b"', '"a""c"'),
]
for members, *texts in cases:
    schema = json.dumps({"allOf": members})
    pattern = re.compile(build_regex_from_schema(schema))
    said = [f"{t} {'accepted' if pattern.fullmatch(t) else 'refused'}" for t in texts]
    print(f"{schema}: {', '.join(said)}")
END
