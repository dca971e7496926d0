"""Random texts of a grammar, and whether a value is what a small schema describes."""

import numpy as np


def allowed(mask):
    """Tokens that a mask lets through."""
    return np.flatnonzero(np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little"))


def random_text(vocabulary, tokenizer, grammar, rng, most=200):
    """A text that tokens drawn among those allowed make, or None where it has no end by then."""
    matcher = vocabulary.matcher(grammar)
    made = []
    while not matcher.is_ended and len(made) < most:
        ends, others = _parted(allowed(matcher.mask()), tokenizer)
        if ends and (not others or rng.random() < 0.3):
            return _text(tokenizer, made)
        token = rng.choice(others)
        made += [token, *_after(matcher, token)]
    return _text(tokenizer, made) if matcher.is_ended else None


def _parted(ids, tokenizer):
    ends = [int(t) for t in ids if t in tokenizer.eog_ids]
    return ends, [int(t) for t in ids if t not in tokenizer.eog_ids]


def _after(matcher, token):
    matcher.take(token)
    forced = matcher.forced_tokens()
    for each in forced:
        matcher.take(each)
    return forced


def _text(tokenizer, tokens):
    return b"".join(tokenizer.token_bytes(token) for token in tokens).decode()


def random_schema(rng, depth=3):
    """A schema whose texts have an end, of the kinds that programs ask for."""
    kinds = ["integer", "boolean", "null", "enum", "string", "const", "pattern", "number"]
    kind = rng.choice(kinds + ["object", "array", "anyOf"] * (depth > 0))
    if kind == "object":
        names = rng.sample(["a", "name", "größe", "x y", 'q"'], rng.randint(0, 3))
        return {
            "type": "object",
            "properties": {name: random_schema(rng, depth - 1) for name in names},
            "required": [name for name in names if rng.random() < 0.7],
            "additionalProperties": False,
        }
    if kind == "array":
        least = rng.randint(0, 2)
        items = random_schema(rng, depth - 1)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + 2}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    return _leaf(rng, kind)


def _leaf(rng, kind):
    low = rng.randint(-50, 50)
    return {
        "integer": {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)},
        "number": {"type": "number", "minimum": low, "maximum": low + 2},
        "boolean": {"type": "boolean"},
        "null": {"type": "null"},
        "enum": {"enum": rng.sample(["red", 1, None, True, "ż", 2.5], 3)},
        "const": {"const": rng.choice(["fixed text", 7, False])},
        "string": {"type": "string", "minLength": 1, "maxLength": rng.randint(1, 6)},
        "pattern": {"type": "string", "pattern": rng.choice(["^[a-c]{2,4}$", "^\\d{3}-\\d$"])},
    }[kind]


def fits(schema, value):
    """Whether a value is what a schema of `random_schema` describes."""
    if "anyOf" in schema:
        return any(fits(each, value) for each in schema["anyOf"])
    if "enum" in schema:
        return any(_same(each, value) for each in schema["enum"])
    if "const" in schema:
        return _same(schema["const"], value)
    return _FITS[schema["type"]](schema, value)


def _same(a, b):
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _is_number(schema, value, kinds):
    if isinstance(value, bool) or not isinstance(value, kinds):
        return False
    return schema["minimum"] <= value <= schema["maximum"]


def _is_string(schema, value):
    import re

    if not isinstance(value, str):
        return False
    if "pattern" in schema:
        return re.search(schema["pattern"], value, re.ASCII) is not None
    return schema["minLength"] <= len(value) <= schema["maxLength"]


def _is_object(schema, value):
    if not isinstance(value, dict):
        return False
    known, there = schema["properties"], value.keys()
    return (
        there <= known.keys()
        and set(schema["required"]) <= there
        and all(fits(known[name], value[name]) for name in there)
    )


def _is_array(schema, value):
    return (
        isinstance(value, list)
        and schema["minItems"] <= len(value) <= schema["maxItems"]
        and all(fits(schema["items"], each) for each in value)
    )


_FITS = {
    "integer": lambda schema, value: _is_number(schema, value, int),
    "number": lambda schema, value: _is_number(schema, value, int | float),
    "boolean": lambda _, value: isinstance(value, bool),
    "null": lambda _, value: value is None,
    "string": _is_string,
    "object": _is_object,
    "array": _is_array,
}
