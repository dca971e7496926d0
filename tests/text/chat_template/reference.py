"""Chat templates as plain Jinja renders them, set up the way ``apply_chat_template`` does."""

import json

import jinja2
from jinja2.ext import Extension, LoopControlExtension
from jinja2.nodes import CallBlock
from jinja2.sandbox import ImmutableSandboxedEnvironment

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
REASONING = ("reasoning_content", "thinking", "reasoning")


class Generation(Extension):
    tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("written"), [], [], body).set_lineno(line)

    def written(self, caller):
        return caller()


def reference(source, now):
    """The compiled template, and a function that renders a conversation with it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, LoopControlExtension]
    )

    def refuse(message):
        raise jinja2.TemplateError(message)

    def to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = now.strftime
    template = environment.from_string(source)

    def render(messages, tools=None, documents=None, add_generation_prompt=True, **variables):
        return template.render(
            messages=[handed_on(message) for message in messages],
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            **TOKENS,
            **variables,
        )

    return render


def handed_on(message):
    """A message without what is None, its reasoning under both names that templates know."""
    message = {name: value for name, value in message.items() if value is not None}
    for name in REASONING:
        if name in message:
            reasoning = message[name]
            return {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message
