"""The commands: names, options and help. What they do is imported when one runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from wgpu_backend.cli.completion import complete_model, complete_pipeline
from wgpu_backend.cli.library_commands import add_library
from wgpu_backend.cli.op import op_app
from wgpu_backend.cli.options import (
    HISTORY_VARIABLES,
    Debug,
    Device,
    ImportanceMatrix,
    Imports,
    Json,
    Model,
    OutFile,
    Pixels,
    Profile,
    Settings,
    Threads,
    makes_answers,
    opens_a_model,
)
from wgpu_backend.cli.parameters import MAX_CONTEXT, Value

app = typer.Typer(
    help="Run GGUF language models on any GPU: every tensor op a WGSL compute shader.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(op_app, name="op")
add_library(app)


def _version(value: bool) -> None:
    if value:
        from wgpu_backend import __version__
        from wgpu_backend.cli.console import answer

        answer(f"wgpu-backend {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None: ...


@app.command()
@opens_a_model
@makes_answers
def run(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="GGUF file, folder, or name in the store; the story model if left out.",
            autocompletion=complete_model,
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What to answer; a chat if left out.")
    ] = None,
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="System message.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is.")] = False,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="Answer in `json`, or by a schema's file."),
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option("--grammar", metavar="FILE", help="Keep to a grammar: GBNF, or .lark."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write the answer and what it took as JSON.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print timing statistics.")] = False,
    no_history: Annotated[
        bool,
        typer.Option(
            "--no-history", envvar=HISTORY_VARIABLES, help="Keep nothing that is typed in a chat."
        ),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="A missing model may come from http://.")
    ] = False,
    *,
    parameters: Mapping[str, Value],
    settings: Settings,
) -> int:
    """Answer a prompt, or chat where none is given; piped text comes before the prompt."""
    from wgpu_backend.cli.formats import grammar_of
    from wgpu_backend.cli.run import Wanted, run

    keeps = grammar_of(form, grammar)
    wanted = Wanted(
        system, parameters, raw=raw, as_json=as_json, history=not no_history, grammar=keeps
    )
    return run((model, prompt), wanted, replace(settings, verbose=verbose), insecure=insecure)


@app.command()
def devices(as_json: Json = False, debug: Debug = False) -> None:
    """List the devices of this machine, best first."""
    from wgpu_backend.cli.devices import print_devices

    print_devices(as_json=as_json)


@app.command("create")
def create_(
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="GGUF file to write, or a name for the store.")
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Folder with config.json, a tokenizer and safetensors."),
    ] = None,
    modelfile: Annotated[
        Path | None,
        typer.Option("-f", "--file", metavar="FILE", help="Modelfile to make a stored model of."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--type",
            "-t",
            metavar="TYPE",
            help="By llama.cpp's name: Q4_K_M, Q8_0, BF16; the folder's if left out.",
        ),
    ] = None,
    importance: ImportanceMatrix = None,
    threads: Threads = None,
    debug: Debug = False,
) -> None:
    """Write a GGUF file of a Hugging Face folder, or make a stored model of a Modelfile."""
    from wgpu_backend.cli.creating import create_either

    create_either(out, folder, modelfile, dtype, importance, threads)


@app.command()
def tokenize(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT")],
    ids: Annotated[bool, typer.Option("--ids", help="Only the ids, as a JSON list.")] = False,
    special: Annotated[
        bool, typer.Option("--special", help="Control tokens in the text are those tokens.")
    ] = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Show text as the model sees it."""
    from wgpu_backend.cli.tokens import print_tokens

    print_tokens(model, text, ids_only=ids, special=special)


@app.command()
@opens_a_model
def logits(
    model: Model,
    out: OutFile,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="IDS", help="Token ids: 1,2,3.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="Text, not templated.")
    ] = None,
    *,
    settings: Settings,
) -> None:
    """Save the scores of every next token as a .npy file, float32, tokens × vocabulary."""
    from wgpu_backend.cli.vectors import write_logits

    write_logits(model, tokens, prompt, out, settings)


@app.command()
@opens_a_model
def embed(
    model: Model,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...")],
    *,
    pooling: Annotated[
        str | None, typer.Option(help="One of mean, cls and last, in place of the file's.")
    ] = None,
    settings: Settings,
) -> None:
    """Write an embedding of each text: one JSON list a line."""
    from wgpu_backend.cli.vectors import print_embeddings

    print_embeddings(model, texts, pooling, settings)


@app.command()
@opens_a_model
def rerank(
    model: Model,
    query: Annotated[str, typer.Argument()],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...")],
    *,
    settings: Settings,
) -> None:
    """Write how well each text answers a query: one number a line, more is better."""
    from wgpu_backend.cli.vectors import print_scores

    print_scores(model, query, texts, settings)


@app.command("imagine")
def imagine_(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="Folder with model_index.json; `pictures`, the bundled one, if left out.",
            autocompletion=complete_pipeline,
        ),
    ],
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What to show.", show_default=False)
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE.png", dir_okay=False, help="File to write.")
    ] = Path("picture.png"),
    negative: Annotated[
        str | None, typer.Option("--negative", metavar="TEXT", help="What to stay away from.")
    ] = None,
    width: Pixels = None,
    height: Pixels = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, max=10_000, help="Steps to make.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", min=0, help="The same gives the same picture on any device."
        ),
    ] = None,
    guidance: Annotated[
        float | None,
        typer.Option("--guidance", metavar="X", min=0, help="How closely to keep to the prompt."),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option("--image", metavar="FILE", dir_okay=False, help="Picture to begin with."),
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option("--mask", metavar="FILE", dir_okay=False, help="White where to paint anew."),
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(
            "--strength", metavar="X", min=0, max=1, help="How much of the picture is made anew."
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("-n", "--n", metavar="N", min=1, max=64, help="Pictures to make.")
    ] = 1,
    preview: Annotated[
        bool, typer.Option("--preview", help="Show the picture in the terminal while it forms.")
    ] = False,
    device: Device = None,
    debug: Debug = False,
) -> None:
    """Make a picture of a text and write it as a PNG file."""
    from wgpu_backend.cli.imagine import Wanted, imagine

    wanted = Wanted(
        negative, width, height, steps, seed, guidance, image, mask, strength, count, preview
    )
    imagine((model, prompt), out, wanted, device)


@app.command()
@opens_a_model
def perplexity(
    model: Model,
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="Text in UTF-8.")],
    chunks: Annotated[
        int | None,
        typer.Option("--chunks", metavar="N", min=1, help="Read so many chunks of the text."),
    ] = None,
    as_json: Json = False,
    *,
    settings: Settings,
) -> None:
    """Measure how well a model foresees a text, in chunks of --num-ctx tokens (512)."""
    from wgpu_backend.cli.perplexity import print_perplexity

    print_perplexity(model, file, chunks, settings, as_json=as_json)


@app.command()
def quantize(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT.gguf", dir_okay=False)],
    dtype: Annotated[
        str, typer.Argument(metavar="TYPE", help="By llama.cpp's name: Q4_K_M, Q8_0, BF16.")
    ],
    importance: ImportanceMatrix = None,
    allow_requantize: Annotated[
        bool,
        typer.Option("--allow-requantize", help="Take values that were quantised before."),
    ] = False,
    threads: Threads = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a GGUF file with its matrices in another type."""
    from wgpu_backend.cli.quantising import quantise_file

    quantise_file(
        model,
        out,
        dtype,
        importance,
        threads,
        allow_requantize=allow_requantize,
        as_json=as_json,
    )


@app.command()
@opens_a_model
def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="GGUF files, folders, or `story`.",
            autocompletion=complete_model,
        ),
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option(
            "-m", "--model", metavar="MODEL,…", help="The same.", autocompletion=complete_model
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            "--n-prompt",
            metavar="N,…",
            help="Tokens of a prompt. [dim]\\[default: 128][/dim]",
        ),
    ] = None,
    generate: Annotated[
        list[str] | None,
        typer.Option(
            "-n", "--n-gen", metavar="N,…", help="Tokens to make. [dim]\\[default: 32][/dim]"
        ),
    ] = None,
    repetitions: Annotated[
        int,
        typer.Option(
            "-r", "--repetitions", metavar="N", min=1, max=1000, help="Runs of each test."
        ),
    ] = 5,
    compare_prediction: Annotated[
        bool,
        typer.Option(
            "--compare-prediction", help="Show what static costs predict for this card, too."
        ),
    ] = False,
    as_json: Json = False,
    *,
    settings: Settings,
) -> None:
    """Measure tokens per second, dispatches and host time per token, and the bandwidth used."""
    from wgpu_backend.cli.bench import Plan, bench, model_names, token_counts

    plan = Plan(
        token_counts("-p", prompt or ["128"]), token_counts("-n", generate or ["32"]), repetitions
    )
    names = model_names(models or [], named or [])
    bench(names, plan, settings, as_json=as_json, compares=compare_prediction)


@app.command("profile")
@opens_a_model
def profile_(
    model: Model,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", dir_okay=False, help="Write a Chrome trace."),
    ] = None,
    prompt: Annotated[
        int, typer.Option("-p", "--n-prompt", min=1, max=MAX_CONTEXT, help="Tokens of the prompt.")
    ] = 128,
    full: Annotated[
        bool, typer.Option("--full", help="Tell shaders apart by their constants, too.")
    ] = False,
    *,
    settings: Settings,
) -> None:
    """Show the time of each op and shader in a prompt and in the step after it."""
    from wgpu_backend.cli.profiling import profile as measure

    measure(model, prompt, trace, settings, full=full)


@app.command("graph")
@opens_a_model
def graph_(
    model: Model,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", dir_okay=False, help="Write a page to explore it."),
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="List every step.")] = False,
    prompt: Annotated[
        int, typer.Option("-p", "--n-prompt", min=1, max=MAX_CONTEXT, help="Tokens of the prompt.")
    ] = 128,
    *,
    settings: Settings,
) -> None:
    """Show the steps of a prompt and of a decode step before and after fusion, and their memory."""
    from wgpu_backend.cli.graph import graph

    graph(model, prompt, html, settings, steps=steps)


@app.command("tune")
def tune_(
    only: Annotated[
        str, typer.Option("--only", metavar="FORMATS", help="Formats of weights: q4_0,q6_k.")
    ] = "",
    as_json: Json = False,
    device: Device = None,
    profile: Profile = "full",
    debug: Debug = False,
) -> None:
    """Measure which variants of products are fastest on a device, and use them from then on."""
    from wgpu_backend.cli.tune import tune_device

    tune_device(device, profile, only, as_json=as_json)
