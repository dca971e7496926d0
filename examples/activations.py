"""Show the states of each layer in a window, a band per layer, while a model tells a story.

::

    $ python examples/activations.py
    Once upon a time …

Each band is one layer's output, a column for each of its numbers, orange above zero and blue below,
in units of the layer's own mean square. The newest token is the lowest row of each band. Bright
columns are numbers that are the same for every token. Options: ``--prompt``, ``--device``, and
``--frames``, ``--screenshot``, ``--offscreen``.
"""

import argparse

import numpy as np
from numpy.typing import NDArray
from picture.colours import signed
from picture.window import BACKGROUND, Pictures, add_options, show

import wgpu_backend as wb

PROMPT = "Tell me a story about a fox named Pip and a lantern."
TOKENS = 160
SHOWN = 24  # tokens of a band
SIZE = (992, 800)


def main() -> None:
    args = arguments()
    with wb.load(args.model, device=args.device) as model:
        show(pictures(model, args), args, SIZE, "Activations")
    print()


def pictures(model: wb.LanguageModel, args: argparse.Namespace) -> Pictures:
    watcher = Watcher(model)
    prompt = model.prompter.chat([{"role": "user", "content": args.prompt}])
    history = [watcher.states(token) for token in prompt]
    stream = model.tokenizer.stream()
    story = ""
    for token in model.tokens(prompt, wb.SamplingOptions(seed=1), num_predict=TOKENS - len(prompt)):
        history.append(watcher.states(token))
        piece = stream.push(token)
        story += piece
        print(piece, end="", flush=True)
        yield bands(np.stack(history[-SHOWN:], axis=1)), f"… {story[-40:]}"
    watcher.close()


class Watcher:
    """A model that computes the states after each layer, token by token, with its own cache."""

    def __init__(self, model: wb.LanguageModel) -> None:
        kind = model.model.config.architecture
        assert isinstance(model.model, wb.models.Llama), f"{kind} has other parts"
        self._model = model.model
        layers, executor = self._model.cache_layers(), model.backend.executor
        self._cache = wb.PagedCache(executor, layers, TOKENS)
        self._runner = wb.Runner(self._model, self._cache)
        self._head = wb.Head("states", lambda batch, _: self._states(batch))

    def states(self, token: int) -> NDArray[np.float32]:
        """Compute the states after each layer for the next token: (layers, width)."""
        result = self._runner.run([wb.Work(0, (token,), (0,))], self._head, {})
        return np.concatenate(result.wait())

    def _states(self, batch: wb.Batch) -> list[wb.Tensor]:
        model = self._model
        x = model.embed(batch)
        states: list[wb.Tensor] = []
        for layer in model.layers:
            x = layer.forward(x, batch)
            states.append(batch.select_outputs(x))
        return states

    def close(self) -> None:
        """Release the device memory."""
        self._runner.close()
        self._cache.close()


def bands(states: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Stack the bands of all layers, (layers, tokens, width), with the newest token lowest."""
    layers, tokens, width = states.shape
    units = states / (3 * np.sqrt(np.mean(states**2, axis=(1, 2), keepdims=True)) + 1e-9)
    gap = 2
    picture = np.empty((layers * (SHOWN + gap) + gap, width + 2 * gap, 3), np.uint8)
    picture[:] = BACKGROUND
    for layer, values in enumerate(units):
        bottom = (layer + 1) * (SHOWN + gap)
        picture[bottom - tokens : bottom, gap : gap + width] = signed(values)
    return picture


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="GGUF file; without it, the bundled story model")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--device", help="as in the table of devices.py; the best one by default")
    add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
