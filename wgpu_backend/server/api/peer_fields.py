"""Fields of vLLM, SGLang and llama-server, which every route that makes text takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from wgpu_backend.server.api.llama_server import sampling as llama_sampling
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.request import CompletionRequest, RequestError
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.structured_output import schema_grammar
from wgpu_backend.text.grammar import Grammar

_JSON = "a JSON Schema that the text must match, an object or a text"
_STRUCTURED = {
    "json": Field((dict, str), _JSON),
    "json_object": Field((bool,), "whether the text is any JSON object"),
    "regex": Field((str,), "a regular expression that the text must match"),
    "choice": Field((list,), "texts of which the answer must be one"),
    "grammar": Field((str,), "a grammar in GBNF or Lark that the text must match"),
    **schema.refuse_fields("needs a JSON Schema, regex or grammar in its place", "structural_tag"),
    **schema.ignore_fields(
        "disable_any_whitespace", "disable_fallback", "disable_additional_properties",
        "whitespace_pattern",
    ),
}  # fmt: skip
# Each API has its own fields for these.
_PROBABILITIES = ("n_probs", "logprobs")
FORM: Mapping[str, Field] = {
    **{name: each for name, each in llama_sampling.FORM.items() if name not in _PROBABILITIES},
    **schema.ignore_fields(
        "guided_decoding_backend", "guided_whitespace_pattern", "spaces_between_special_tokens",
        "priority", "request_id", "cache_salt", "cache_prompt",
    ),
    **schema.refuse_fields(
        "needs echo with logprobs on /v1/completions in its place", "prompt_logprobs"
    ),
    "grammar": _STRUCTURED["grammar"],
    "json_schema": _STRUCTURED["json"],
    "guided_json": _STRUCTURED["json"],
    "guided_regex": _STRUCTURED["regex"],
    "guided_choice": _STRUCTURED["choice"],
    "guided_grammar": _STRUCTURED["grammar"],
    "structured_outputs": Field((dict,), "json, regex, choice, grammar or json_object"),
    "regex": _STRUCTURED["regex"],
    "ebnf": _STRUCTURED["grammar"],
    "min_tokens": Field((int,), "least tokens of the answer", least=0),
    "stop_token_ids": Field((list,), "tokens that end the answer, and are not returned"),
    "repetition_penalty": Field(
        (float,), "repeat_penalty over the whole prompt and answer", least=0.01, most=100
    ),
    "skip_special_tokens": Field((bool,), "false: spell control tokens out in the text"),
    "enable_thinking": Field((bool,), "whether to reason first"),
    "chat_template_kwargs": Field((dict,), "variables of the model's own template"),
    "ignore_eos": Field((bool,), "continue after tokens that end a text"),
    "stop": schema.STOP,
}  # fmt: skip
# Fields that constrain the text, by kind.
_SCHEMAS = ("json_schema", "guided_json", "json")
_REGEXES = ("guided_regex", "regex")
_CHOICES = ("guided_choice", "choice")
_GRAMMARS = ("grammar", "guided_grammar", "ebnf")


def read_sampling(fields: Fields) -> dict[str, Any]:
    """Return the sampling options of a request, by Ollama's names.

    Raises
    ------
    RequestError
        A value cannot be right.
    """
    found = llama_sampling.read_sampling(fields)
    if (penalty := fields.get("repetition_penalty", float)) is not None:
        # vLLM has no window for its penalty.
        found = {"repeat_last_n": -1, **found, "repeat_penalty": penalty}
    if stop := fields.texts("stop"):
        found["stop"] = stop
    return found


def has_thinking(fields: Fields) -> bool:
    """Return whether a request sets reasoning by vLLM's fields."""
    given: dict[str, Any] = fields.get("chat_template_kwargs", dict) or {}
    return fields.has("enable_thinking") or "enable_thinking" in given


def apply_peer_fields(fields: Fields, request: CompletionRequest) -> CompletionRequest:
    """Add the fields of vLLM, SGLang and llama-server to a completion request.

    Raises
    ------
    RequestError
        A value cannot be right, or two fields say different things of what the text has to be.
    """
    said = (request.grammar, *_read_grammars(fields))
    # Without duplicates: clients send one grammar under the old and the new name of vLLM.
    shapes = list(dict.fromkeys(each for each in said if each is not None))
    if len(shapes) > 1:
        named = ", ".join(_list_constraints(fields)) or "response_format"
        raise RequestError(400, f"{named}: {len(shapes)} constraints of the text, needs one")
    switch = fields.get("enable_thinking", bool)
    asks = switch is not None and request.think is None
    given: dict[str, Any] = fields.get("chat_template_kwargs", dict) or {}
    return replace(
        request,
        grammar=shapes[0] if shapes else None,
        engine={
            **request.engine,
            "max_seconds": llama_sampling.read_time_limit(fields),
            "lora": llama_sampling.read_lora(fields),
            "min_tokens": fields.get("min_tokens", int) or 0,
            "stop_tokens": _read_tokens(fields, "stop_token_ids"),
            "ignore_eos": fields.switch("ignore_eos", default=False),
        },
        spelled=not fields.switch("skip_special_tokens", default=True),
        think=switch if asks else request.think,
        optional_think="enable_thinking" if asks else request.optional_think,
        template={**request.template, **given},
    )


def _read_tokens(fields: Fields, name: str) -> Sequence[int]:
    found = cast("list[object]", fields.get(name, list) or [])
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int):
            raise RequestError(400, f"{name}: {str(each)[:40]!r}, needs whole numbers")
    return cast("list[int]", found)


def _list_constraints(fields: Fields) -> list[str]:
    """Return the names of the given fields that constrain the text."""
    names = dict.fromkeys((*_SCHEMAS, *_REGEXES, *_CHOICES, *_GRAMMARS, "structured_outputs"))
    return [name for name in names if name in FORM and fields.has(name)]


def _read_grammars(fields: Fields) -> list[Grammar]:
    """Return the grammars of all fields, and of ``structured_outputs``, that constrain the text."""
    found = _read_field_grammars(fields, "")
    given = fields.get("structured_outputs", dict)
    if given is None:
        return found
    inner = Fields(given, _STRUCTURED, "structured_outputs.")
    found += _read_field_grammars(inner, "structured_outputs.")
    return [*found, Grammar.json()] if inner.switch("json_object", default=False) else found


def _read_field_grammars(fields: Fields, where: str) -> list[Grammar]:
    schemas = [(name, fields.get(name, dict, str)) for name in _SCHEMAS]
    choices = [(name, fields.get(name, list)) for name in _CHOICES]
    grammars = [(name, fields.text(name)) for name in _GRAMMARS]
    # llama-server's field is always GBNF.
    own = "" if where else "grammar"
    return [
        *(schema_grammar(each, where + name) for name, each in schemas if each not in (None, "")),
        *(Grammar.regex(text) for name in _REGEXES if (text := fields.text(name))),
        *(_make_choice_grammar(each, where + name) for name, each in choices if each is not None),
        *(
            Grammar.gbnf(text) if name == own or "::=" in text else Grammar.lark(text)
            for name, text in grammars
            if text
        ),
    ]


def _make_choice_grammar(given: list[object], where: str) -> Grammar:
    if not given or not all(isinstance(each, str) and each for each in given):
        raise RequestError(400, f"{where}: needs a list of texts that are not empty")
    return Grammar.regex("|".join(map(re.escape, cast("list[str]", given))))
