"""Print the device time of one decode step, op by op, most expensive first.

::

    $ python examples/profile_step.py
    linear                 25     0.89 ms    86%
    rope_attention          6     0.07 ms     7%
    …

``wgpu-backend profile MODEL`` also distinguishes shaders and writes a trace. A device as the only
argument (``cpu``) runs it there.
"""

import sys
from collections import Counter
from statistics import median

import wgpu_backend as wb

RUNS = 5
CONTEXT = 256  # positions: the shortest that a graph is made for


def main(device: str | None = None) -> None:
    with wb.load(device=device, num_ctx=CONTEXT) as model:
        head = wb.Head("argmax", lambda _, hidden: [model.model.logits(hidden).argmax()])
        prompt = model.tokenizer.encode("Once upon a time there was a fox.")
        model.runner.prefill(0, prompt, head, {})
        # A step of one token fills the inputs of its recorded graph, which then runs with a clock.
        model.runner.run([wb.Work(0, prompt[-1:], (0,))], head, {}).wait()
        step = model.runner.recorded(wb.BatchShape(1, 1, 1, longest=CONTEXT), head)
        runs = [step.timed() for _ in range(RUNS)]
    calls = Counter(op for op, _, _ in runs[0])
    seconds: Counter[str] = Counter()
    for same in zip(*runs, strict=True):
        seconds[same[0][0]] += median(s for _, _, s in same)
    for op, took in seconds.most_common():
        share = took / seconds.total()
        print(f"{op:<20} {calls[op]:>4} {took * 1e3:>8.2f} ms {share:>6.0%}")
    print(f"{'all':<20} {calls.total():>4} {seconds.total() * 1e3:>8.2f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
