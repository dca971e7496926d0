"""outlines and guidance, by their clients for OpenAI, vLLM and SGLang."""

from typing import Literal

import openai
import outlines
from features import try_all, url
from guidance import assistant, gen, select, user
from guidance.models import experimental

API = {"base_url": f"{url()}/v1", "api_key": "none", "max_retries": 0}
SCHEMA = '{"type": "object", "properties": {"ok": {"const": true}}, "required": ["ok"]}'


def _outlined(made):
    model = made(openai.OpenAI(**API), "tale")
    how = {"max_tokens": 60, "temperature": 0}
    assert model("Hi", Literal["red", "blue"], **how) in ("red", "blue")
    assert len(model("Hi", outlines.types.Regex("[0-9]{3}"), **how)) == 3
    assert "".join(model.stream("Hi", outlines.types.CFG('root ::= "yes"'), **how)) == "yes"


def outlines_openai():
    model = outlines.from_openai(openai.OpenAI(**API), "tale")
    schema = outlines.types.JsonSchema(SCHEMA)
    assert '"ok"' in model("Hi", schema, max_tokens=60, temperature=0)


def outlines_vllm():
    _outlined(outlines.from_vllm)


def outlines_sglang():
    _outlined(outlines.from_sglang)


def _guided(kind):
    model = kind("tale", base_url=API["base_url"], api_key="none", echo=False)
    with user():
        model += "Hi"
    with assistant():
        model += select(["red", "blue"], name="hue") + ", " + gen("number", regex="[0-9]{3}")
    assert model["hue"] in ("red", "blue")
    assert len(model["number"]) == 3


def guidance_vllm():
    _guided(experimental.VLLMModel)


def guidance_sglang():
    _guided(experimental.SglangModel)


try_all([outlines_openai, outlines_vllm, outlines_sglang, guidance_vllm, guidance_sglang])
