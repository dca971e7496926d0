"""The choice of one sequence's tokens, wherever its options let it happen."""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend.engine.sampling import build, checked, inputs
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.sample import Sampler, SamplingOptions, plan


class StepSampler:
    """Chooses tokens on the device where the options allow, else from logits on the host.

    Parameters
    ----------
    options : SamplingOptions
    vocabulary : int
        Logits there are each time.

    Attributes
    ----------
    kind : str
        Tells apart the graphs that `build` makes.
    """

    def __init__(self, options: SamplingOptions, vocabulary: int) -> None:
        self._sampler = Sampler(options, vocabulary)
        self._plan = plan(options)
        self._history: list[int] = []
        self.kind = f"{self._plan.kind}/{self._plan.candidates}/{self._plan.history}"

    def start(self, prompt: Sequence[int]) -> None:
        """Begin with the tokens of a prompt, which penalties look at too."""
        self._history = list(prompt)

    def build(self, context: Context, logits: Tensor) -> list[Tensor]:
        """Add what a step reads back: the token, or the logits for the host."""
        return [logits if self._plan.kind == "host" else build(context, logits, self._plan)]

    def inputs(self) -> dict[str, Array]:
        """Values of the inputs that `build` declared, for the next step."""
        if self._plan.kind == "host":
            return {}
        return inputs([self._sampler], [self._history], self._plan)

    def token(self, arrays: Sequence[Array]) -> int:
        """Token of a step, from what it read back.

        Raises
        ------
        BackendError
            The logits are NaN or infinite.
        """
        if self._plan.kind == "host":
            token = self._sampler.sample(arrays[0][0], self._history)
        else:
            token = checked(arrays[0])[0]
        self._history.append(token)
        return token
