"""Print a story word by word, then its speed and the device.

::

    $ python examples/generate.py "Tell me a story about a bear and a kite."
    Once upon a time …

    189 tokens, 982 per second, on llvmpipe (LLVM 15.0.6, 256 bits)

Options: ``--model file.gguf``, ``--device cpu``, ``--tokens 60``, ``--temperature 0``.
"""

import argparse

import wgpu_backend as wb

PROMPT = "Tell me a story about a fox named Pip and a lantern."


def main() -> None:
    args = arguments()
    options = wb.SamplingOptions(temperature=args.temperature, seed=1)
    with wb.load(args.model, device=args.device) as model:
        answer = model.generate(args.prompt, stream=True, options=options, num_predict=args.tokens)
        for piece in answer:
            print(piece, end="", flush=True)
        stats = model.stats
        speed = stats.tokens / stats.seconds
        print(f"\n\n{stats.tokens} tokens, {speed:.0f} per second, on {model.device.name}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("--model", help="GGUF file; without it, the bundled story model")
    parser.add_argument("--device", help="as in the table of devices.py; the best one by default")
    parser.add_argument("--tokens", type=int, default=-1, help="most tokens to make")
    parser.add_argument("--temperature", type=float, default=0.8)
    return parser.parse_args()


if __name__ == "__main__":
    main()
