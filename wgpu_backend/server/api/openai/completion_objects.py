"""Objects of OpenAI's completions: the text, and how likely each of its tokens is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from wgpu_backend.engine.batching.results import TokenLogprob
from wgpu_backend.server.api.ollama.routes import format_logprob
from wgpu_backend.server.core.completion import Completion, CompletionOutput
from wgpu_backend.text.tokenizer.pieces import Detokenizer

_Columns = dict[str, list[Any]]


class CompletionObjects:
    """The objects of completions; counts the characters that each choice has returned."""

    prefix, kind, chunk = "cmpl-", "text_completion", "text_completion"

    def __init__(self) -> None:
        self._given: dict[int, tuple[Detokenizer, int]] = {}

    def first(self, choice: int, answer: Completion) -> dict[str, Any] | None:
        """Return the prompt, if the request asks for it."""
        self._given[choice] = answer.tokenizer.stream(), 0
        if not answer.echo:
            return None
        text = _spell_prompt(answer)
        self._given[choice] = answer.tokenizer.stream(), len(text)
        judged = _make_prompt_columns(answer, text) if answer.request.prompt_logprobs else None
        return {"index": choice, "text": text, "logprobs": judged, "finish_reason": None}

    def piece(self, choice: int, output: CompletionOutput, calls_before: int) -> dict[str, Any]:
        """Return a piece of text and its tokens; a completion calls no tools."""
        logprobs = self._read_columns(choice, output.logprobs) if output.logprobs else None
        return {"index": choice, "text": output.content, "logprobs": logprobs}

    def whole(self, choice: int, output: CompletionOutput, answer: Completion) -> dict[str, Any]:
        """Return a whole choice."""
        begun = self.first(choice, answer)
        made = self.piece(choice, output, 0)
        if begun is None:
            return made
        both = [each["logprobs"] for each in (begun, made) if each["logprobs"]]
        names = both[0] if both else ()
        joined = {name: [value for each in both for value in each[name]] for name in names}
        return {**made, "text": begun["text"] + made["text"], "logprobs": joined or None}

    def _read_columns(self, choice: int, found: Sequence[TokenLogprob]) -> _Columns:
        """Return the columns of an answer's tokens."""
        detokenizer, begin = self._given[choice]
        sizes = [len(detokenizer.push(each.token)) for each in found]
        *offsets, end = accumulate(sizes, initial=begin)
        self._given[choice] = detokenizer, end
        return _make_columns(found, offsets)


def _make_prompt_columns(answer: Completion, text: str) -> _Columns:
    """Return the columns of a prompt; its first token has no predecessor."""
    tokenizer, tokens = answer.tokenizer, answer.request.tokens
    first = TokenLogprob(tokens[0], 0.0, tokenizer.token_bytes(tokens[0]))
    detokenizer = tokenizer.stream(skip_special=False)
    sizes = [len(detokenizer.push(token)) for token in tokens]
    # The text leaves BOS out, so BOS has no width.
    sizes[0] *= tokens[0] != tokenizer.bos_id
    ends = [*accumulate(sizes, initial=0)]
    # Some tokenizers drop the space of the first word, so offsets move back by one.
    dropped = max(ends[-1] + len(detokenizer.flush()) - len(text), 0)
    offsets = [max(end - dropped, 0) for end in ends[:-1]]
    found = _make_columns([first, *answer.prompt_logprobs], offsets)
    found["token_logprobs"][0] = found["top_logprobs"][0] = None
    return found


def _spell_prompt(answer: Completion) -> str:
    """Return the text of a prompt's tokens, without BOS."""
    tokens = [*answer.request.tokens]
    begins = tokens[0] == answer.tokenizer.bos_id
    return answer.tokenizer.decode(tokens[begins:], skip_special=False)


def _make_columns(found: Iterable[TokenLogprob], offsets: Iterable[int]) -> _Columns:
    """Return the columns of tokens; the most likely tokens include the one that was chosen."""
    made: _Columns = {
        "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [*offsets],
    }  # fmt: skip
    for each in found:
        text, logprob = _spell_token(each)
        top: dict[str, float] = {}
        for name, value in map(_spell_token, (*each.top, each)):
            top.setdefault(name, value)
        made["tokens"].append(text)
        made["token_logprobs"].append(logprob)
        made["top_logprobs"].append(top)
    return made


def _spell_token(each: TokenLogprob) -> tuple[str, float]:
    """Return a token's text and log probability; incomplete characters become bytes in hex."""
    # OpenAI spells incomplete characters as ``bytes:\xe2``.
    told = format_logprob(each)
    try:
        return each.piece.decode(), told["logprob"]
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in each.piece), told["logprob"]
