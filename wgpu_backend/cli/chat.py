"""A conversation: its messages, and the options of its answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import cast

from wgpu_backend.cli.console import note
from wgpu_backend.cli.failures import brief
from wgpu_backend.cli.model_facts import read_template
from wgpu_backend.cli.parameters import PARAMETERS, SAMPLING
from wgpu_backend.cli.reply import Reply, format_parts, parse_parts, print_reply
from wgpu_backend.cli.served_model import ServedModel
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.prompt import Message
from wgpu_backend.errors import OptionError
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.text.grammar import Grammar
from wgpu_backend.text.output_parsers import OutputParser, Part, parser_for, thinks

# Last tokens of a prompt, which may contain the tag that opens the reasoning.
_TAIL = 16


@dataclass(slots=True)
class Chat:
    """A conversation with a model.

    Parameters
    ----------
    system : str
        System message; empty for none.
    num_predict : int
        Most tokens of an answer; negative for no limit except the context.
    stop : tuple of str
        Texts that end an answer.
    raw : bool
        Continue each prompt as it is, without the conversation.
    verbose : bool
        Print timing statistics after each answer.
    messages : list
        Messages so far that fit the context, without the system message.
    echo : bool
        Write answers to stdout.
    reopen : callable
        Loads the model again with another context size.
    warned : bool
        Whether the user was warned that the oldest messages are left out.
    grammar : Grammar or None
        Grammar of the answers.
    source : str
        Name of the model as the user gave it.
    load : callable
        Switches to another model.
    think : bool or None
        Whether to reason first; None for the model's default.
    wraps : bool
        Break lines between words.
    keeps : bool
        Keep the input history for later chats.
    chosen : set of str
        Names of the parameters that the user set.
    hides_thinking : bool
        Leave reasoning out of the output.
    images, sounds : list of str
        Files of pictures and sounds that the next prompt is about.
    videos : list of str
        Animations, and folders of frames, that the next prompt is about.
    fps : float or None
        Frames in a second of these; None for the usual number.
    """

    model: LanguageModel | ServedModel
    system: str = ""
    options: SamplingOptions = field(default_factory=SamplingOptions)
    num_predict: int = -1
    stop: tuple[str, ...] = ()
    raw: bool = False
    verbose: bool = False
    messages: list[Message] = field(default_factory=list[Message])
    echo: bool = True
    reopen: Callable[[int], LanguageModel] = field(default=lambda num_ctx: _refuse_context(num_ctx))
    warned: bool = False
    grammar: Grammar | None = None
    source: str = ""
    load: Callable[[str], None] = field(default=lambda name: _refuse_load(name))
    think: bool | None = None
    wraps: bool = True
    keeps: bool = True
    chosen: set[str] = field(default_factory=set[str])
    hides_thinking: bool = False
    images: list[str] = field(default_factory=list[str])
    sounds: list[str] = field(default_factory=list[str])
    videos: list[str] = field(default_factory=list[str])
    fps: float | None = None

    @property
    def uses_template(self) -> bool:
        """Return whether prompts are rendered as a conversation by a template."""
        return not self.raw and self._template is not None

    @property
    def _template(self) -> str | None:
        if isinstance(self.model, ServedModel):
            return self.model.template
        template = self.model.prompter.template
        return None if template is None else read_template(self.model.backend.config)

    def ask(self, prompt: str) -> Reply:
        """Print the answer to a prompt, and add both to the conversation.

        Paths of pictures and sounds in the prompt, as a terminal writes them when files are dropped
        on it, are taken for those files if the model has a tower for them.
        """
        if isinstance(self.model, LanguageModel):
            for modality, files in (("image", self.images), ("audio", self.sounds)):
                if self.model.towers.has(modality):
                    prompt, found = take_paths(prompt, modality)
                    files += found
        reply = self._reply(prompt) if self.uses_template else self._continue(prompt)
        if self.model.stats.context_full:
            note(
                f"the answer ends here, as the context of {self.model.num_ctx} tokens is full; "
                "--num-ctx makes it larger"
            )
        return reply

    def _reply(self, prompt: str) -> Reply:
        message = self._make_message(prompt)
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        # After /clear a conversation can outgrow the context, and be warned of, again.
        self.warned = self.warned and bool(self.messages)
        parts = self._stream_chat([*system, *self.messages, message])
        # `chat` fits the messages into the context before it streams, so that the note can come
        # before the answer.
        dropped = self.model.stats.dropped_messages
        if dropped and not self.warned:
            self.warned = True
            note(
                f"the conversation is longer than the context of {self.model.num_ctx} tokens: its "
                "oldest messages are left out from here on"
            )
        reply = self._print(parts)
        self.messages += [message, {"role": "assistant", "content": reply.text}]
        # What does not fit now does not fit later: the conversation only grows.
        del self.messages[:dropped]
        return reply

    def _make_message(self, prompt: str) -> Message:
        """Return the message of a prompt, with its pictures; they belong to this prompt alone."""
        images, self.images = self.images, []
        sounds, self.sounds = self.sounds, []
        videos, self.videos = self.videos, []
        shown = {"images": [Path(image).read_bytes() for image in images]} if images else {}
        if not videos and not sounds:
            return {"role": "user", "content": prompt, **shown}
        rate = {} if self.fps is None else {"fps": self.fps}
        parts = [{"type": "video", "video": _read_video(Path(each)), **rate} for each in videos]
        parts += [{"type": "audio", "audio": Path(each).read_bytes()} for each in sounds]
        return {"role": "user", "content": [*parts, {"type": "text", "text": prompt}], **shown}

    def _print(self, parts: Iterator[Part]) -> Reply:
        texts: list[str] = []
        pieces = format_parts(parts, texts, hides_thinking=self.hides_thinking)
        reply = print_reply(pieces, echo=self.echo, wraps=self.wraps)
        # The conversation keeps the answer without its reasoning, as chat templates expect it.
        return replace(reply, text="".join(texts))

    def _stream_chat(self, messages: list[Message]) -> Iterator[Part]:
        if isinstance(self.model, ServedModel):
            return self.model.parts(messages, self._list_chosen(), self.grammar, self.think)
        parser = self._make_parser(self.model, messages)
        pieces = self.model.chat(
            messages,
            stream=True,
            options=self.options,
            num_predict=self.num_predict,
            stop=self.stop,
            format=self.grammar,
            chat_template_kwargs=self._make_thinking_variables(),
        )
        return parse_parts(pieces, parser)

    def _make_parser(self, model: LanguageModel, messages: list[Message]) -> OutputParser | None:
        """Return the parser that separates reasoning; None if the text has no tags of it."""
        template = self._template or ""
        if not thinks(template):
            return None
        texts = [{"role": each["role"], "content": get_text(each)} for each in messages]
        ids = model.prompter.chat(texts, chat_template_kwargs=self._make_thinking_variables())
        # Some templates end in the tag that opens the reasoning.
        tail = model.tokenizer.decode(ids[-_TAIL:], skip_special=False)
        parser = parser_for(template, prompt=tail)
        # Streams of text leave out control tokens, so the parser would not see such tags.
        if not model.tokenizer.control_ids(parser.tags):
            return parser
        if self.hides_thinking:
            raise OptionError(
                f"--hidethinking: {self.source} marks its reasoning with control tokens, which "
                "only a server separates; start `wgpu-backend serve` first"
            )
        return None

    def _make_thinking_variables(self) -> dict[str, object]:
        """Return the template variables for reasoning, under both common names."""
        # Qwen's templates read `enable_thinking`, DeepSeek's and others `thinking`.
        return {} if self.think is None else {"enable_thinking": self.think, "thinking": self.think}

    def _continue(self, prompt: str) -> Reply:
        if isinstance(self.model, ServedModel):
            return self._print(self.model.continue_text(prompt, self._list_chosen(), self.grammar))
        images, self.images = self.images, []
        sounds, self.sounds = self.sounds, []
        if self.videos:
            raise OptionError(
                "--video: needs a chat template, which writes the place of a video; it works "
                "neither with --raw nor for a model without one"
            )
        pieces = self.model.generate(
            prompt,
            stream=True,
            raw=True,
            images=images,
            audio=sounds,
            options=self.options,
            num_predict=self.num_predict,
            stop=self.stop,
            format=self.grammar,
        )
        return self._print(parse_parts(pieces, None))

    def _list_chosen(self) -> dict[str, object]:
        """Return the parameters that the user set, by name."""
        values: dict[str, object] = {name: getattr(self.options, name) for name in SAMPLING}
        values |= {"num_predict": self.num_predict, "stop": list(self.stop)}
        # A server has defaults of its own for a model, which values that the user did not choose
        # would override.
        return {name: value for name, value in values.items() if name in self.chosen}

    def parameters(self) -> dict[str, object]:
        """Return the values of all parameters by name."""
        values: dict[str, object] = {name: getattr(self.options, name) for name in SAMPLING}
        # Both draw a new seed for each answer.
        values["seed"] = "random" if self.options.seed in (None, -1) else self.options.seed
        rest = {"num_predict": self.num_predict, "stop": list(self.stop) or "none"}
        return {**values, **rest, "num_ctx": self.model.num_ctx}

    def set_parameter(self, name: str, words: list[str]) -> None:
        """Set a parameter from the user's input.

        Raises
        ------
        OptionError
            The parameter is unknown, or the value is invalid.
        """
        parameter = PARAMETERS.get(name)
        if parameter is None:
            raise OptionError(
                f"parameter {brief(name)}: unknown, needs one of {', '.join(PARAMETERS)}"
            )
        if parameter.kind == "texts":
            texts = parameter.texts(words)
            if name == "stop":
                self.stop = texts
            else:
                self.options = replace(self.options, **{name: texts})
            self.chosen.add(name)
            return
        value = parameter.number(" ".join(words))
        if name == "num_ctx" and isinstance(self.model, ServedModel):
            # The server loads the model with this context at the next request.
            self.model.asked_ctx = int(value)
        elif name == "num_ctx":
            self.model = self.reopen(int(value))
        elif name == "num_predict":
            self.num_predict = int(value)
        else:
            self.options = replace(self.options, **{name: value})
        self.chosen.add(name)


def get_text(message: Message) -> str:
    """Return the text of a message, without its pictures and videos."""
    content = message["content"]
    if not isinstance(content, list):
        return str(content)
    parts = cast("list[Message]", content)
    return "".join(str(part["text"]) for part in parts if part["type"] == "text")


def _read_video(path: Path) -> bytes | list[bytes]:
    """Return the bytes of an animation, or of the pictures of a folder."""
    # Imported here: Pillow takes time, and few chats need it.
    from wgpu_backend.files.media.pictures import list_pictures

    if path.is_dir():
        return [each.read_bytes() for each in list_pictures(path)]
    return path.read_bytes()


_ENDINGS = {"image": "png|jpe?g|webp", "audio": "wav|mp3|flac|ogg"}


@cache
def _path_pattern(modality: str) -> re.Pattern[str]:
    """Return a pattern of paths with a picture's or a sound's ending.

    They are quoted, or have escaped spaces.
    """
    endings = _ENDINGS[modality]
    return re.compile(
        rf"""(?P<quote>['"])(?P<quoted>[^'"\n]+\.(?:{endings}))(?P=quote)"""
        rf"""|(?P<bare>(?:\\.|[^\s'"])+\.(?:{endings}))(?=\s|$)""",
        re.IGNORECASE,
    )


def take_paths(prompt: str, modality: str = "image") -> tuple[str, list[str]]:
    """Remove paths of pictures or sounds that exist from a prompt, and return them."""
    found: list[str] = []
    pattern = _path_pattern(modality)

    def take(match: re.Match[str]) -> str:
        path = match["quoted"] or re.sub(r"\\(.)", r"\1", match["bare"])
        if not Path(path).is_file():
            return match[0]
        found.append(path)
        return ""

    return pattern.sub(take, prompt).strip() if pattern.search(prompt) else prompt, found


def _refuse_context(num_ctx: int) -> LanguageModel:
    raise OptionError(f"num_ctx: {num_ctx}, cannot change while the model is loaded")


def _refuse_load(name: str) -> None:
    raise OptionError(f"{name}: this chat cannot load another model")
