"""The default model of `serve` for requests that do not name one, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.serve.texts import text_of, words

if TYPE_CHECKING:
    from wgpu_backend.server.core.defaults import ModelDefaults


@dataclass(frozen=True, slots=True)
class OwnModel:
    """The options of the server's default model."""

    own_model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="NAME", help="Default model for requests that do not name one."
        ),
    ] = None
    any_name: Annotated[
        bool,
        typer.Option("--any-name", help="Take --model for names of models that are not there."),
    ] = False
    preload: Annotated[
        bool,
        typer.Option("--preload", help="Load --model before requests are served, and keep it."),
    ] = False
    alias: Annotated[str, typer.Option(metavar="NAMES", help="Further names of --model: A,B.")] = ""
    tags: Annotated[str, typer.Option(metavar="WORDS", help="Tags of --model in lists: A,B.")] = ""
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Template of --model's chats: chatml, llama3, …, or Jinja itself."
        ),
    ] = None
    chat_template_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same, in a file.")
    ] = None
    reasoning: Annotated[
        Literal["on", "off", "auto"] | None,
        typer.Option(help="Whether --model reasons where a request says nothing."),
    ] = None
    reasoning_format: Annotated[
        Literal["none", "auto", "deepseek"] | None,
        typer.Option(help="`none` leaves --model's reasoning in the text of OpenAI's chats."),
    ] = None
    pooling: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Pooling for embeddings: mean, cls, last, max, weightedmean, mean_sqrt_len, or "
            "several joined by +; none for one vector per token.",
        ),
    ] = None

    def settings(self, sampling: Mapping[str, object]) -> dict[str, Any]:
        """Return the server's settings from these options.

        Parameters
        ----------
        sampling : mapping
            Given parameters of the model's answers, by name.

        Raises
        ------
        UsageError
            Options of the model are given without --model, or the template is invalid.
        """
        defaults = self.defaults(sampling)
        if self.own_model is None:
            self._require_nothing_said(defaults)
        return {
            "default_model": self.own_model or "",
            "any_name": self.any_name,
            "preload": self.preload,
            "aliases": words(self.alias),
            "tags": words(self.tags),
            "defaults": defaults,
            "pooling": _pooling(self.pooling),
        }

    def defaults(self, sampling: Mapping[str, object]) -> ModelDefaults:
        """How it answers where a request says nothing; errors as `settings`."""
        from wgpu_backend.server.core.defaults import ModelDefaults

        template = _template(self.chat_template, self.chat_template_file)
        raw = self.reasoning_format == "none"
        return ModelDefaults(template, self.reasoning or "", sampling, raw_thoughts=raw)

    def _require_nothing_said(self, defaults: ModelDefaults) -> None:
        said = {
            "--any-name": self.any_name,
            "--preload": self.preload,
            "--alias": self.alias,
            "--tags": self.tags,
            "--chat-template": defaults.template,
            "--reasoning": self.reasoning,
            "--reasoning-format": self.reasoning_format,
            "--pooling": self.pooling,
            **{"--" + name.replace("_", "-"): True for name in defaults.sampling},
        }
        for option in (option for option, value in said.items() if value):
            raise UsageError(f"{option}: requires --model")


def _pooling(text: str | None) -> str | None:
    """Check the pooling; raises as `OwnModel.settings`."""
    from wgpu_backend.engine.pooling import known_pooling
    from wgpu_backend.errors import OptionError

    try:
        return text if text in (None, "none") else known_pooling(text)
    except OptionError as error:
        raise UsageError(f"--{error}, or none") from None


def _template(text: str | None, path: Path | None) -> str:
    """Return the chat template given by name, as Jinja or in a file; empty if none is given."""
    from wgpu_backend.errors import TemplateError
    from wgpu_backend.text.chat_template import ChatTemplate
    from wgpu_backend.text.chat_template.builtin_templates import resolve_template

    option = "--chat-template" if path is None else "--chat-template-file"
    if text is not None and path is not None:
        raise UsageError("--chat-template and --chat-template-file: give one")
    try:
        if text is not None:
            return ChatTemplate(resolve_template(text)).source
        return "" if path is None else ChatTemplate(text_of(option, path)).source
    except TemplateError as error:
        raise UsageError(f"{option}: {error}") from None
