"""Conversations of Llama, as OpenAI's API gives them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, cast

from wgpu_backend.engine.arguments import conversation
from wgpu_backend.engine.prompt import Prompter
from wgpu_backend.errors import OptionError
from wgpu_backend.llama.completion import Completions
from wgpu_backend.llama.formats import FORMATS
from wgpu_backend.llama.grammar import response_grammar
from wgpu_backend.llama.processors import Processors
from wgpu_backend.text.chat_template import ChatTemplate

Json = dict[str, Any]
OF_THE_FILE = "chat_template.default"
_TOLD = ("functions", "function_call", "tool_choice")  # beside tools, for templates


class ChatCompletions(Completions):
    """The part of `Llama` that answers conversations."""

    chat_format: str | None
    chat_handler: Callable[..., Any] | None

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: object = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: object = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Processors | None = None,
        grammar: object = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> Any:  # noqa: ANN401  an answer, or an iterator of its parts
        """Answer a conversation.

        Control tokens come from the template alone; spelled out in a message they are text.

        Parameters
        ----------
        messages : sequence of mappings
            Each with a ``role`` and a ``content``.
        functions, tools : sequence of mappings or None
            For the model's template. What it answers is its text: calls are not told apart.
        stop : str, sequence of str or None
            Texts that end the answer, beside those of the format.
        logprobs, top_logprobs
            Tell of each token, and of so many of the likeliest.
        stream : bool
            Give an iterator of parts.
        temperature, top_p, top_k, min_p, typical_p, seed, max_tokens, logit_bias
            And the others: see `Llama.create_completion`.

        Returns
        -------
        dict, or iterator of dict
            Shaped as OpenAI's chat completions.

        Raises
        ------
        TemplateError
            The template refuses the messages.
        OptionError
            A call of a function is asked for.
        GrammarError
            A grammar or a schema cannot be used.
        """
        options: Json = {
            "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p,
            "typical_p": typical_p, "stream": stream, "stop": stop, "seed": seed,
            "max_tokens": max_tokens, "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty, "repeat_penalty": repeat_penalty,
            "tfs_z": tfs_z, "mirostat_mode": mirostat_mode, "mirostat_tau": mirostat_tau,
            "mirostat_eta": mirostat_eta, "model": model, "logits_processor": logits_processor,
            "grammar": grammar, "logit_bias": logit_bias,
        }  # fmt: skip
        asked: Json = {
            "functions": functions, "function_call": function_call, "tools": tools,
            "tool_choice": tool_choice, "response_format": response_format,
        }  # fmt: skip
        if self.chat_handler is not None:
            told = {"logprobs": logprobs, "top_logprobs": top_logprobs}
            return self.chat_handler(llama=self, messages=messages, **asked, **options, **told)
        _require_free(asked)
        options["grammar"] = grammar if grammar is not None else response_grammar(response_format)
        prompter, ends = self._prompter()
        given = {name: asked[name] for name in _TOLD if asked[name] is not None}
        tokens = prompter.chat(
            conversation(messages), tools=_tools(tools, functions), chat_template_kwargs=given
        )
        options["stop"] = [*([stop] if isinstance(stop, str) else stop or ()), *ends]
        count = (top_logprobs or 0) if logprobs else None
        made = self.create_completion(tokens, logprobs=count, **options)
        return _parts(made) if stream else _whole(made)

    def _prompter(self) -> tuple[Prompter, Sequence[str]]:
        """What renders conversations, the file's template or a format, and what ends answers."""
        name, model = self.chat_format, self.model
        prompter = model.language.prompter
        tokens = (model.token_bos(), model.token_eos())
        bos, eos = (model.token_get_text(each) if each >= 0 else "" for each in tokens)
        if name in (None, OF_THE_FILE) and prompter.template is not None:
            return prompter, [eos] if eos else []
        name = name or "llama-2"  # as llama-cpp-python guesses
        if name not in FORMATS:
            raise OptionError(f"chat_format: {name!r}, needs one of {', '.join(FORMATS)}, or None")
        made, found = Prompter(model.config, model.tokenizer), FORMATS[name]
        made.template = ChatTemplate(found.template, bos_token=bos, eos_token=eos)
        return made, found.stop

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Answer a conversation, in classes of the package `openai`, which has to be installed."""
        from openai.types.chat import ChatCompletion, ChatCompletionChunk  # pyright: ignore

        made = self.create_chat_completion(*args, **kwargs)
        if kwargs.get("stream"):
            return (cast("Any", ChatCompletionChunk)(**part) for part in made)
        return cast("Any", ChatCompletion)(**made)


def _require_free(asked: Json) -> None:
    """Refuse what asks for calls, which are not told apart here.

    Raises
    ------
    OptionError
        One is asked for.
    """
    for name in ("function_call", "tool_choice"):
        if asked[name] not in (None, "none", "auto"):
            raise OptionError(
                f"{name}: calls of functions are not told apart here; ask for the arguments with a "
                "response_format, or serve the model with `wgpu-backend serve`"
            )


def _tools(
    tools: Sequence[Mapping[str, Any]] | None, functions: Sequence[Mapping[str, Any]] | None
) -> Sequence[Mapping[str, Any]] | None:
    """Tools for a template, which older programs give as functions."""
    if tools is not None or functions is None:
        return tools
    return [{"type": "function", "function": each} for each in functions]


def _logprobs(told: Json | None) -> Json | None:
    if told is None:
        return None
    rows = zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True)
    content = [
        {**_entry(text, log), "top_logprobs": [_entry(*each) for each in top.items()]}
        for text, log, top in rows
    ]
    return {"content": content, "refusal": None}


def _entry(text: str, log: float) -> Json:
    return {"token": text, "bytes": list(text.encode()), "logprob": log}


def _head(made: Json, kind: str) -> Json:
    return {
        "id": f"chat{made['id']}",
        "object": kind,
        "created": made["created"],
        "model": made["model"],
    }


def _whole(made: Json) -> Json:
    choice = made["choices"][0]
    answer = {
        "index": 0,
        "message": {"role": "assistant", "content": choice["text"]},
        "logprobs": _logprobs(choice["logprobs"]),
        "finish_reason": choice["finish_reason"],
    }
    return {**_head(made, "chat.completion"), "choices": [answer], "usage": made["usage"]}


def _parts(made: Iterable[Json]) -> Generator[Json]:
    first = True
    for part in made:
        choice, head = part["choices"][0], _head(part, "chat.completion.chunk")
        if first:
            yield {**head, "choices": [_delta({"role": "assistant"}, None, None)]}
            first = False
        ended = choice["finish_reason"] is not None
        delta = {} if ended else {"content": choice["text"]}
        told = _logprobs(choice["logprobs"])
        yield {**head, "choices": [_delta(delta, told, choice["finish_reason"])]}


def _delta(delta: Json, told: Json | None, reason: str | None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": told, "finish_reason": reason}
