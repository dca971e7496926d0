"""A conversation: what was said, and how the model is to answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

from wgpu_backend.cli.reply import Reply, say
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.prompt import Message
from wgpu_backend.errors import OptionError
from wgpu_backend.sample import SamplingOptions

SAMPLING = tuple(f.name for f in fields(SamplingOptions))
_WHOLE = ("top_k", "repeat_last_n", "seed", "num_predict")


@dataclass(slots=True)
class Chat:
    """One conversation with a model.

    Parameters
    ----------
    model : LanguageModel
    system : str
        System message; empty for none.
    options : SamplingOptions
    num_predict : int
        Most tokens of an answer; negative for as many as the context holds.
    stop : tuple of str
        Texts that end an answer.
    raw : bool
        Continue prompts as they are, each on its own.
    verbose : bool
        Say after each answer what it took.
    messages : list
        What was said so far, without the system message.
    """

    model: LanguageModel
    system: str = ""
    options: SamplingOptions = field(default_factory=SamplingOptions)
    num_predict: int = -1
    stop: tuple[str, ...] = ()
    raw: bool = False
    verbose: bool = False
    messages: list[Message] = field(default_factory=list[Message])

    @property
    def templated(self) -> bool:
        """Whether the model is given a conversation, not bare text."""
        return not self.raw and self.model.prompter.template is not None

    def ask(self, prompt: str) -> Reply:
        """Answer a prompt on stdout; both become part of the conversation."""
        if not self.templated:
            return say(self._continued(prompt))
        asked: Message = {"role": "user", "content": prompt}
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        reply = say(self._answered([*system, *self.messages, asked]))
        self.messages += [asked, {"role": "assistant", "content": reply.text}]
        return reply

    def _answered(self, messages: list[Message]) -> Iterator[str]:
        return self.model.chat(
            messages,
            stream=True,
            options=self.options,
            num_predict=self.num_predict,
            stop=self.stop,
        )

    def _continued(self, prompt: str) -> Iterator[str]:
        return self.model.generate(
            prompt,
            stream=True,
            raw=True,
            options=self.options,
            num_predict=self.num_predict,
            stop=self.stop,
        )

    def parameters(self) -> dict[str, object]:
        """Values of all parameters by name."""
        values: dict[str, object] = {name: getattr(self.options, name) for name in SAMPLING}
        return {**values, "num_predict": self.num_predict, "stop": list(self.stop)}

    def set_parameter(self, name: str, words: list[str]) -> None:
        """Set a parameter from what a user typed.

        Raises
        ------
        OptionError
            There is no such parameter, or the value does not suit it.
        """
        if name == "stop":
            if not all(words):
                raise OptionError("stop: '', needs at least one character")
            self.stop = tuple(words)
        elif name == "num_predict":
            self.num_predict = int(_number(name, words))
        elif name in SAMPLING:
            self.options = replace(self.options, **{name: _number(name, words)})
        else:
            known = ", ".join(self.parameters())
            raise OptionError(f"parameter {name!r}: known are {known}")


def _number(name: str, words: list[str]) -> float:
    """Number of a parameter, whole where it has to be."""
    kind = int if name in _WHOLE else float
    try:
        [word] = words
        return kind(word)
    except ValueError:
        needs = "a whole number" if kind is int else "a number"
        raise OptionError(f"{name}: {' '.join(words)!r}, needs {needs}") from None
