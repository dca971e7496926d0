"""Ask two questions; the second turn computes only the tokens that the first did not.

::

    $ python examples/chat.py
    > Tell me a story about a fox named Pip and a lantern.
    Once upon a time …
      [17 tokens computed, 0 from the cache, 60 made]

    > Tell me another one.
    Once there was …
      [11 tokens computed, 76 from the cache, 60 made]

A device as the only argument (``cpu``) runs it there.
"""

import sys

import wgpu_backend as wb

QUESTIONS = ("Tell me a story about a fox named Pip and a lantern.", "Tell me another one.")


def main(device: str | None = None) -> None:
    messages: list[dict[str, str]] = []
    options = wb.SamplingOptions(seed=1)
    with wb.load(device=device) as model:
        for question in QUESTIONS:
            print(">", question)
            messages.append({"role": "user", "content": question})
            answer = ""
            for piece in model.chat(messages, stream=True, options=options, num_predict=60):
                print(piece, end="", flush=True)
                answer += piece
            messages.append({"role": "assistant", "content": answer})
            stats = model.stats
            print(
                f"\n  [{stats.prompt_tokens} tokens computed, "
                f"{stats.reused_tokens} from the cache, {stats.tokens} made]\n"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
