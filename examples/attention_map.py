"""Show in a window where each attention head of a layer looks while a model tells a story.

::

    $ python examples/attention_map.py
    Once upon a time …

Each square is a head: a row is a token, a column an earlier token, and bright cells have large
weights. The weights are the softmax of q·k, computed by the model's own modules in a separate
graph, over all tokens so far. (The fused attention kernel does not write them to memory.) The
image shows their square root, which makes small weights visible. Options: ``--layer``,
``--prompt``, ``--device``, and ``--frames``, ``--screenshot``, ``--offscreen``.
"""

import argparse
import math

import numpy as np
from numpy.typing import NDArray
from picture.colours import glowing
from picture.window import BACKGROUND, Pictures, add_options, show

import wgpu_backend as wb

PROMPT = "Tell me a story about a fox named Pip and a lantern."
TOKENS = 96  # that the squares have room for
SIZE = (1024, 704)


def main() -> None:
    args = arguments()
    with wb.load(args.model, device=args.device) as model:
        show(pictures(model, args), args, SIZE, "Attention")
    print()


def pictures(model: wb.LanguageModel, args: argparse.Namespace) -> Pictures:
    watcher = Watcher(model, args.layer)
    tokens = model.prompter.chat([{"role": "user", "content": args.prompt}])
    stream = model.tokenizer.stream()
    story = ""
    for token in model.tokens(tokens, wb.SamplingOptions(seed=1), num_predict=TOKENS - len(tokens)):
        tokens = [*tokens, token]
        piece = stream.push(token)
        story += piece
        print(piece, end="", flush=True)
        yield side_by_side(watcher.weights(tokens)), f"layer {watcher.layer}, … {story[-40:]}"
    watcher.close()


class Watcher:
    """A model that computes the attention weights of one layer.

    Parameters
    ----------
    model : LanguageModel
        Of Llama's kind.
    layer : int
        May be negative, from the last.
    """

    def __init__(self, model: wb.LanguageModel, layer: int) -> None:
        kind = model.model.config.architecture
        assert isinstance(model.model, wb.models.Llama), f"{kind} has other parts"
        self._model = model.model
        self.layer = range(len(self._model.layers))[layer]
        layers, executor = self._model.cache_layers(), model.backend.executor
        self._cache = wb.PagedCache(executor, layers, padded(TOKENS))
        self._runner = wb.Runner(self._model, self._cache)
        self._head = wb.Head("attention", self._build)

    def weights(self, tokens: list[int]) -> NDArray[np.float32]:
        """Compute where each token looks: (heads, tokens, tokens); rows sum to 1."""
        count = len(tokens)
        mask = np.triu(np.full((padded(count),) * 2, -1e9, np.float32), 1)
        self._cache.remove(0)
        result = self._runner.run([wb.Work(0, tokens, range(count))], self._head, {"mask": mask})
        return result.wait()[0][:, :count, :count]

    def _build(self, batch: wb.Batch, hidden: wb.Tensor) -> list[wb.Tensor]:
        return [self._weights(batch)]

    def _weights(self, batch: wb.Batch) -> wb.Tensor:
        model, tokens = self._model, batch.shape.tokens
        x = model.embed(batch)
        for layer in model.layers[: self.layer]:
            x = layer.forward(x, batch)
        layer = model.layers[self.layer]
        attention = layer.mixer
        q, k, _ = attention.project_heads(layer.mixer_norm(x))
        q, k = (y.permute(1, 0, 2) for y in attention.apply_positions(q, k, batch))
        shared = attention.heads // attention.kv_heads  # query heads of one key head
        rows = q.reshape(attention.kv_heads, shared * tokens, attention.head)
        scores = k.contiguous().mulmat(rows).reshape(attention.heads, tokens, tokens)
        mask = batch.context.input("mask", (tokens, tokens))
        return (scores.scale(factor=attention.scale) + mask).softmax()

    def close(self) -> None:
        """Release the device memory."""
        self._runner.close()
        self._cache.close()


def padded(count: int) -> int:
    """Return the rows of a batch of so many tokens: batches come in powers of two."""
    return 1 << (count - 1).bit_length()


def side_by_side(weights: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Arrange a square for each head in a grid."""
    heads, count, _ = weights.shape
    columns = math.ceil(math.sqrt(heads * SIZE[0] / SIZE[1]))
    rows = math.ceil(heads / columns)
    gap = TOKENS // 16
    step = TOKENS + gap
    picture = np.empty((rows * step + gap, columns * step + gap, 3), np.uint8)
    picture[:] = BACKGROUND
    for head, values in enumerate(weights):
        top, left = (gap + step * i for i in divmod(head, columns))
        square = np.zeros((TOKENS, TOKENS))
        square[:count, :count] = np.sqrt(values)
        picture[top : top + TOKENS, left : left + TOKENS] = glowing(square)
    return picture


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="GGUF file; without it, the bundled story model")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--layer", type=int, default=2, help="negative ones count from the last")
    parser.add_argument("--device", help="as in the table of devices.py; the best one by default")
    add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
