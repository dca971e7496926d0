"""Output items of OpenAI's responses, and the events that tell of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wgpu_backend.engine.batching.results import TokenLogprob
from wgpu_backend.server.api.ollama.routes import format_logprobs
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.sse import dump_arguments
from wgpu_backend.text.output_parsers import Content, Part, Thinking

Item = dict[str, Any]
_EVENTS = {"output_text": "response.output_text", "reasoning_text": "response.reasoning_text"}


class Namespaces:
    """The functions of ``namespace`` tools, which models call by both names in one.

    Parameters
    ----------
    tools : sequence of mapping
        Of a request.

    Attributes
    ----------
    tools : list of mapping
        The same, with each namespace replaced by its functions.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.tools: list[Mapping[str, Any]] = []
        self._apart: dict[str, tuple[str, str]] = {}
        for tool in tools:
            if tool.get("type") == "namespace":
                self._open(tool)
            else:
                self.tools.append(tool)

    def _open(self, tool: Mapping[str, Any]) -> None:
        fields = Fields(tool, where="tools: ")
        space = fields.require("name")
        for inner in fields.objects("tools"):
            name: object = inner.get("name")
            if not isinstance(name, str) or not name:
                raise RequestError(400, f"tools: {space[:40]}: needs functions with names")
            joined = join_name(space, name)
            self._apart[joined] = space, name
            self.tools.append({**inner, "name": joined})

    def split_name(self, name: str) -> dict[str, str]:
        """Split the name of a function that a model calls into its name and its namespace."""
        if name not in self._apart:
            return {"name": name}
        space, inner = self._apart[name]
        return {"name": inner, "namespace": space}


def join_name(space: str, name: str) -> str:
    """Return the name by which a model calls a function of a namespace."""
    return f"{space}__{name}" if space else name


@dataclass(slots=True)
class Items:
    """The items of an answer: finished ones, and the open one."""

    spaces: Namespaces = field(default_factory=Namespaces)
    done: list[Item] = field(default_factory=list[Item])
    thought: str = ""
    _open: Item | None = None
    _likely: list[TokenLogprob] = field(default_factory=list[TokenLogprob])

    def add_logprobs(self, found: Sequence[TokenLogprob]) -> None:
        """Take log probabilities of the tokens that the next parts are made of."""
        self._likely += found

    def _take_logprobs(self, text: str) -> list[Item]:
        """Take the log probabilities of a text that ends with the newest token."""
        # Tokens before the text were a tag, which the parser removed.
        size, found = len(text.encode()), list[TokenLogprob]()
        while self._likely and size > 0:
            found.insert(0, self._likely.pop())
            size -= len(found[0].piece)
        self._likely = []
        return format_logprobs(found)

    def push(self, part: Part) -> list[Item]:
        """Return the events of another part."""
        if isinstance(part, Content):
            return self._add_text("message", "output_text", part.text)
        if isinstance(part, Thinking):
            self.thought += part.text
            return self._add_text("reasoning", "reasoning_text", part.text)
        self._likely = []
        return [*self.close(), *self._add_call(part.name, dump_arguments(part.arguments))]

    def _add_text(self, kind: str, inner: str, text: str) -> list[Item]:
        if not text:
            return []
        events: list[Item] = []
        if self._open is None or self._open["type"] != kind:
            events += [*self.close(), *self._begin_item(kind, inner)]
        assert self._open is not None
        likely = self._take_logprobs(text)
        part: Item = self._open["content"][0]
        part["text"] += text
        more: Item = {"logprobs": likely} if inner == "output_text" else {}
        part |= {name: [*part[name], *values] for name, values in more.items()}
        return [*events, self._make_event(f"{_EVENTS[inner]}.delta", delta=text, **more)]

    def _begin_item(self, kind: str, inner: str) -> list[Item]:
        item: Item = {"id": _make_id(kind), "type": kind, "status": "in_progress", "content": []}
        item |= {"role": "assistant"} if kind == "message" else {"summary": []}
        part: Item = {"type": inner, "text": ""}
        if inner == "output_text":
            part |= {"annotations": [], "logprobs": []}
        self._open = {**item, "content": [part]}
        began = {"type": "response.output_item.added", "output_index": len(self.done), "item": item}
        return [began, self._make_event("response.content_part.added", part=dict(part))]

    def _make_event(self, kind: str, **more: Any) -> Item:  # noqa: ANN401
        assert self._open is not None
        where = {"item_id": self._open["id"], "output_index": len(self.done), "content_index": 0}
        return {"type": kind, **where, **more}

    def _add_call(self, name: str, arguments: str) -> list[Item]:
        call = {**self.spaces.split_name(name), "call_id": f"call_{uuid.uuid4().hex[:24]}"}
        item = {"id": _make_id("function_call"), "type": "function_call", **call}
        at = {"output_index": len(self.done)}
        where = {"item_id": item["id"], **at}
        began = {**item, "status": "in_progress", "arguments": ""}
        kind = "response.function_call_arguments"
        self.done.append({**item, "status": "completed", "arguments": arguments})
        return [
            {"type": "response.output_item.added", **at, "item": began},
            {"type": f"{kind}.delta", **where, "delta": arguments},
            {"type": f"{kind}.done", **where, "name": call["name"], "arguments": arguments},
            {"type": "response.output_item.done", **at, "item": self.done[-1]},
        ]

    def close(self, status: str = "completed") -> list[Item]:
        """Return the events that end the open item."""
        item = self._open
        if item is None:
            return []
        [part] = item["content"]
        item["status"] = status
        more: Item = {"logprobs": part["logprobs"]} if part["type"] == "output_text" else {}
        events = [
            self._make_event(f"{_EVENTS[part['type']]}.done", text=part["text"], **more),
            self._make_event("response.content_part.done", part=part),
            {"type": "response.output_item.done", "output_index": len(self.done), "item": item},
        ]
        self.done.append(item)
        self._open = None
        return events


def _make_id(kind: str) -> str:
    prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
    return f"{prefix}_{uuid.uuid4().hex}"
