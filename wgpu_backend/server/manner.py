"""How a server's own model answers, where its operator said so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from wgpu_backend.output_parsers.formats import reasoning
from wgpu_backend.server.wanted import Wanted

Reasons = Literal["", "on", "off", "auto"]
_DATES = {"date_string": "%d %b %Y", "datetime": "%b %d %Y"}
_FUNCTIONS = "functools["  # a mark of Firefunction's templates
_ASKED: Mapping[str, Mapping[str, bool]] = {
    "auto": {"enable_thinking": True},
    "on": {"enable_thinking": True, "thinking": True},
    "off": {"enable_thinking": False, "thinking": False},
}


@dataclass(frozen=True, slots=True)
class Manner:
    """What holds for answers where a request says nothing.

    Parameters
    ----------
    template : str
        In the place of the model's own; empty for that.
    reasons : str
        Whether the model is to reason: ``on``, ``off``, ``auto`` where its template knows how; and
        empty for what the template does by itself.
    sampling : mapping
        Options by Ollama's names.
    raw_thoughts : bool
        Whether reasoning is left in the text of OpenAI's chats.
    """

    template: str = ""
    reasons: Reasons = ""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    raw_thoughts: bool = False

    @property
    def variables(self) -> Mapping[str, bool]:
        """Variables of the template."""
        return _ASKED.get(self.reasons, {})

    def applied(self, wanted: Wanted) -> Wanted:
        """A request with the fields that it leaves open filled in."""
        if wanted.raw_thoughts is None:
            wanted = replace(wanted, raw_thoughts=self.raw_thoughts)
        if wanted.think is not None:
            return wanted
        think = False if self.reasons == "off" else None
        return replace(wanted, think=think, template={**self.variables, **wanted.template})


def supplied(template: str, tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, str]:
    """Variables that some templates read beside those that all are given.

    Today's date, in whose place a template would else have a past one or none; and functions as
    JSON, as Firefunction has them.

    Parameters
    ----------
    template : str
    tools : sequence of mapping
    """
    now = datetime.now()
    found = {name: now.strftime(form) for name, form in _DATES.items() if name in template}
    return found | ({"functions": json.dumps([*tools])} if _FUNCTIONS in template else {})


def without_reasoning(template: str) -> str:
    """A template without its tags of reasoning: who reads answers by it leaves that in the text."""
    for span in reasoning(template):
        for tag in (span.opening, *span.closings):
            template = template.replace(tag, "")
    return template


def closing(prompt: str, template: str) -> str:
    """Tag that ends a reasoning which a prompt has begun, as some templates always have it.

    Parameters
    ----------
    prompt : str
        At least its end.
    template : str
        What rendered it.
    """
    ending = prompt.rstrip()
    found = (span.closings[0] for span in reasoning(template) if ending.endswith(span.opening))
    return next(found, "")
