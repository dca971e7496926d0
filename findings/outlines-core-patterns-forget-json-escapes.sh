#!/bin/sh
# outlines_core: a schema's `pattern` is matched against the JSON text, not against the string's value
#
# Version: outlines_core 0.2.14. `pattern` speaks of the value of a string. The expression is put between two quotes
# as it is, so characters that JSON has to escape come out bare: a pattern that has a quote or a
# backslash allows one answer only, which is not JSON, and refuses the escaped one. `[^,]+` allows a
# line break and a quote within the string. Paths of Windows, quoted names and "anything but a comma" are
# everyday patterns of tool arguments.
. "$(dirname "$0")/common.sh"
install outlines_core==0.2.14
expect '^"a"$: "\"a\"" refused, ""a"" accepted but not JSON
^C:\\a$: "C:\\a" refused, "C:\a" accepted but not JSON
^[^,]+$: "a b" accepted, "a"b" accepted but not JSON' <<'END'
import json
import re

from outlines_core.json_schema import build_regex_from_schema


def verdict(pattern, text):
    schema = json.dumps({"type": "string", "pattern": pattern})
    if not re.fullmatch(build_regex_from_schema(schema), text):
        return f"{text} refused"
    try:
        json.loads(text)
    except ValueError:
        return f"{text} accepted but not JSON"
    return f"{text} accepted"


for pattern, value, bare in (
    ('^"a"$', '"a"', '""a""'),
    (r"^C:\\a$", r"C:\a", r'"C:\a"'),
    ("^[^,]+$", "a b", '"a"b"'),
):
    print(f"{pattern}: {verdict(pattern, json.dumps(value))}, {verdict(pattern, bare)}")
END
