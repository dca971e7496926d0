"""Compare each tensor of a model's first layer with a dump that another run wrote.

::

    $ python examples/compare_dump.py
    wrote 10 tensors, computed by NumPy, to story.safetensors
    ok  token_embd           (12, 192)  reference (12, 192)  cosine 1.000000  largest difference 0
    …
    10 of 10 are alike on llvmpipe (LLVM 15.0.6, 256 bits)

The dump may come from any program that writes safetensors: ``--dump file.safetensors`` compares
with the tensors that the file has, by the names above. ``--model`` takes a GGUF file of the
Llama architecture, ``--device`` an id that devices.py lists.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

import wgpu_backend as wb

TOKENS = range(1, 13)


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        dump = args.dump or written(args.model, Path(folder) / "story.safetensors")
        with wb.load(args.model, device=args.device) as model:
            compare(model, dump)


def written(model_path: str | None, dump: Path) -> Path:
    """Write a dump of the values that the NumPy device computes."""
    with (
        wb.load(model_path, device="cpu") as model,
        model.backend.new_context() as context,
    ):
        arrays = {
            name: np.ascontiguousarray(tensor.numpy())
            for name, tensor in first_layer(model, context).items()
        }
    save_file(arrays, dump)
    print(f"wrote {len(arrays)} tensors, computed by NumPy, to {dump.name}")
    return dump


def compare(model: wb.LanguageModel, dump: Path) -> None:
    """Print what `Context.compare_with` finds, and a verdict."""
    there = load_file(dump)
    with model.backend.new_context() as context:
        tensors = {n: t for n, t in first_layer(model, context).items() if n in there}
        report = context.compare_with(dump, tensors, abort_on_error=False)
    for line in report:
        print(line)
    alike = sum(line.close for line in report)
    print(f"{alike} of {len(report)} are alike on {model.device.name}")


def first_layer(model: wb.LanguageModel, context: wb.Context) -> dict[str, wb.Tensor]:
    """Return the tensors of the first layer, by the names of the weights that produced them."""
    llama = model.model
    assert isinstance(llama, wb.models.Llama), f"{llama.config.architecture} has other parts"
    layer = llama.layers[0]
    attention, mlp = layer.mixer, layer.mlp
    x = llama.token_embedding(context.from_ints(TOKENS))
    normed = layer.mixer_norm(x)
    fed = layer.mlp_norm(x)
    gate, up = mlp.gate(fed), mlp.up(fed)
    return {
        "token_embd": x,
        "blk.0.attn_norm": normed,
        "blk.0.attn_q": attention.query(normed),
        "blk.0.attn_k": attention.key(normed),
        "blk.0.attn_v": attention.value(normed),
        "blk.0.ffn_norm": fed,
        "blk.0.ffn_gate": gate,
        "blk.0.ffn_up": up,
        "blk.0.ffn_down": mlp.down(gate.swiglu(up)),
        "output": llama.logits(llama.output_norm(x)),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="GGUF file; without it, the bundled story model")
    parser.add_argument("--dump", type=Path, help="safetensors file to compare with")
    parser.add_argument("--device", help="as in the table of devices.py; the best one by default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
