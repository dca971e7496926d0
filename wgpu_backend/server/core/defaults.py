"""The operator's defaults for completions of the server's own model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from wgpu_backend.server.core.request import CompletionRequest
from wgpu_backend.text.output_parsers.formats import reasoning_spans

Reasons = Literal["", "on", "off", "auto"]
_DATES = {"date_string": "%d %b %Y", "datetime": "%b %d %Y"}
# Marks Firefunction's templates.
_FUNCTIONS = "functools["
# Names of SmolLM 3's and Granite's templates for ``tools``.
_TOOLS = ("xml_tools", "available_tools")
_ASKED: Mapping[str, Mapping[str, bool]] = {
    "auto": {"enable_thinking": True},
    "on": {"enable_thinking": True, "thinking": True},
    "off": {"enable_thinking": False, "thinking": False},
}


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """The operator's defaults for fields that a request leaves open.

    Parameters
    ----------
    template : str
        Jinja that replaces the model's template; empty to keep that.
    reasons : str
        Whether the model reasons: ``on``, ``off``, ``auto`` where its template supports it, or
        empty for the template's own default.
    sampling : mapping
        Sampling options, by Ollama's names.
    raw_thoughts : bool
        Leave reasoning, with its tags, in the text of OpenAI's chats.
    """

    template: str = ""
    reasons: Reasons = ""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    raw_thoughts: bool = False

    @property
    def variables(self) -> Mapping[str, bool]:
        """Variables for the chat template that turn reasoning on or off."""
        return _ASKED.get(self.reasons, {})

    def choose_thinking(self, think: bool | str | None) -> bool | str | None:
        """Return whether or how much to reason; None for the template's own default."""
        return False if think is None and self.reasons == "off" else think


def make_template_variables(
    defaults: ModelDefaults, request: CompletionRequest, think: bool | str | None, template: str
) -> dict[str, Any]:
    """Return the variables of a request for its model's chat template.

    Parameters
    ----------
    think : bool, str or None
        Whether or how much to reason, see `ModelDefaults.choose_thinking`.
    template : str
        Jinja that is rendered.
    """
    found = supply_variables(template, request.tools)
    if think is not None:
        # Templates read one or the other name.
        found |= dict.fromkeys(("enable_thinking", "thinking"), bool(think))
    if isinstance(think, str):
        found["reasoning_effort"] = think
    if request.think is None:
        found |= defaults.variables
    return {**found, **request.template}


def supply_variables(template: str, tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return variables that only some templates read: today's date, and functions by other names.

    Without a date, templates use a fixed one from their training or none. Firefunction's templates
    read functions as JSON, SmolLM 3's as ``xml_tools``, Granite's as ``available_tools``.

    Parameters
    ----------
    template : str
        Jinja; a variable is supplied where its name occurs.

    Returns
    -------
    dict
        Values by the variables' names.
    """
    now = datetime.now()
    found: dict[str, Any] = {
        name: now.strftime(form) for name, form in _DATES.items() if name in template
    }
    if _FUNCTIONS in template:
        found["functions"] = json.dumps([*tools])
    named = [name for name in _TOOLS if name in template and tools]
    return found | {name: [*tools] for name in named}


def strip_reasoning(template: str) -> str:
    """Remove the reasoning tags of a template, so that its parser leaves reasoning in the text."""
    for span in reasoning_spans(template):
        for tag in (span.opening, *span.closings):
            template = template.replace(tag, "")
    return template.replace("<think{}>", "")


def find_closing_tag(prompt: str, template: str) -> str:
    """Return the tag that closes reasoning which the template opened at the end of a prompt.

    Parameters
    ----------
    prompt : str
        The prompt, or its end.
    template : str
        Jinja of the template that rendered it.

    Returns
    -------
    str
        Empty if the prompt opens no reasoning.
    """
    ending = prompt.rstrip()
    found = (
        span.closings[0] for span in reasoning_spans(template) if ending.endswith(span.opening)
    )
    return next(found, "")
