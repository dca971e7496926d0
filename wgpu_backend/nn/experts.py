"""Mixtures of experts: a router chooses a few networks for each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import ExpertLinear, Linear, fused_linear
from wgpu_backend.nn.mlp import (
    MLP,
    Activation,
    AnyActivation,
    activated,
    gated,
    require_activation,
)
from wgpu_backend.nn.module import Module, weight

Scores = Literal["softmax", "sigmoid", "softmax of chosen"]
# Values of the key expert_gating_func.
_BY_NUMBER: dict[int, Scores] = {1: "softmax", 2: "sigmoid", 3: "softmax of chosen"}


@dataclass(frozen=True, slots=True)
class Routing:
    """The choice of experts and their weights from a router's logits.

    Parameters
    ----------
    experts, used : int
        Number of experts, and of those that each token uses.
    scores : str
        ``"softmax"`` or ``"sigmoid"`` of all logits, or ``"softmax of chosen"`` logits.
    normalised : bool
        Whether the weights of a token are divided by their sum.
    scale : float
        Factor of the weights.
    groups, groups_used : int
        Number of groups of experts, and of groups that a token may use: those whose two best
        experts score highest. DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", §2.1.2.
    """

    experts: int
    used: int
    scores: Scores = "softmax"
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1

    @classmethod
    def from_config(
        cls, config: LayerConfig, scores: Scores = "softmax", *, normalised: bool = True
    ) -> Routing:
        """Read the routing from a file; keys it lacks take the architecture's defaults.

        Raises
        ------
        ModelError
            The numbers of experts and groups are inconsistent, or the scoring function is unknown.
        """
        keys = config.config
        experts = keys.uint("expert_count", at_least=1)
        used = keys.uint("expert_used_count", at_least=1)
        groups = max(keys.uint("expert_group_count", 1), 1)
        groups_used = max(keys.uint("expert_group_used_count", groups), 1)
        if used > experts or experts % groups or groups_used > groups:
            raise config.fail(
                f"{used} of {experts} experts, in {groups_used} of {groups} groups; needs no more "
                "than there are, in groups of one size"
            )
        number = keys.uint("expert_gating_func", 0)
        if number and number not in _BY_NUMBER:
            raise config.fail(f"expert_gating_func is {number}, known are 1 to {len(_BY_NUMBER)}")
        return cls(
            experts,
            used,
            _BY_NUMBER.get(number, scores),
            keys.bool("expert_weights_norm", normalised),
            keys.float("expert_weights_scale", 1.0) or 1.0,
            groups,
            groups_used,
        )

    def choose(self, logits: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose the experts of each token, and their weights.

        Parameters
        ----------
        logits : (tokens, experts)
        bias : (experts,) or None
            Added to scores for the choice only, not for the weights.

        Returns
        -------
        (tokens, used), i32, and (tokens, used), f32
        """
        tokens = logits.shape[0]
        by_logits = self.scores == "softmax of chosen"
        scores = logits if by_logits else activated(_SCORES[self.scores], logits)
        ranked = scores if bias is None else scores.add(bias.reshape(-1))
        ids = self._mask_groups(ranked).top_k(self.used)
        chosen = scores.reshape(tokens, self.experts, 1).rows(ids).reshape(tokens, self.used)
        if by_logits:
            chosen = chosen.softmax()
        elif self.normalised:
            chosen = chosen / chosen.sum_rows()
        return ids, chosen if self.scale == 1 else chosen.scale(factor=self.scale)

    def _mask_groups(self, ranked: Tensor) -> Tensor:
        """Lower the scores of experts in unused groups below all others."""
        if self.groups_used == self.groups:
            return ranked
        return ranked.of_best_groups(groups=self.groups, used=self.groups_used)


_SCORES: dict[str, Activation] = {
    "softmax": lambda x: x.softmax(),
    "sigmoid": lambda x: x.sigmoid(),
}


class SharedGate(Linear):
    """A linear layer with one output: weight (width,) or (1, width)."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (tokens, width) to (tokens, 1), and add `residual` of that shape."""
        return self.add_adapters(self.weight.reshape(1, -1).linear(x, residual), x)


class Experts(Module):
    """The weighted sum of the chosen experts' networks, plus that of the shared experts.

    Shazeer et al. 2017, "Outrageously Large Neural Networks"; shared experts as in Dai et al. 2024,
    "DeepSeekMoE", §3.2. Biases, the bias of the choice, and shared experts are used where the file
    has them. ``ffn_gate_up_exps`` has the rows of gates, then of projections.

    Parameters
    ----------
    activation : str or callable
        See `MLP`.
    routing : Routing or None
        None for a normalised softmax, unless the file has other keys.
    inner : int or None
        Values between the matrices of an expert; None for ``expert_feed_forward_length``, or
        ``feed_forward_length``.
    is_gated : bool
        Whether experts have a gate.
    weighs_inputs : bool
        Whether the weights multiply the inputs of the experts instead of their outputs.
    """

    router: Linear = weight("ffn_gate_inp", "count", "width")
    choice_bias: Tensor | None = None
    gate: ExpertLinear | None = None
    up: ExpertLinear
    down: ExpertLinear = weight("ffn_down_exps", "count", "width", "inner")
    shared: MLP | None = None
    shared_gate: SharedGate | None = weight("ffn_gate_inp_shexp")

    def __init__(
        self,
        config: LayerConfig,
        activation: AnyActivation = "silu",
        routing: Routing | None = None,
        *,
        inner: int | None = None,
        is_gated: bool = True,
        weighs_inputs: bool = False,
    ) -> None:
        self.routing = routing or Routing.from_config(config)
        self.count, self.width = self.routing.experts, config.width
        self.activation = config.activation(activation)
        require_activation(self.activation, gated=is_gated)
        self.is_gated, self.weighs_inputs = is_gated, weighs_inputs
        keys = config.config
        if inner is None and "expert_feed_forward_length" in keys:
            inner = config.uint("expert_feed_forward_length", at_least=1)
        self.inner = inner or config.uint("feed_forward_length", at_least=1)
        self.rows = self.inner
        for name in ("exp_probs_b", "exp_probs_b.bias"):
            if name in config:
                one = (1,) * (len(config.get_shape(name) or ()) - 1)
                self.choice_bias = weight(name, *one, "count")
        down = config.get_shape("ffn_down_shexp.weight")
        if down is not None:
            own = keys.uint("expert_shared_feed_forward_length", down[-1])
            self.shared = MLP(
                config, activation, gated=is_gated, inner=own or down[-1], suffix="_shexp"
            )

    def declare(self, has: Callable[[str], bool]) -> None:
        """Tag separate weights for gates and projections, or one joint weight."""
        if has("ffn_gate_up_exps.weight"):
            self.rows = 2 * self.inner
            self.up = weight("ffn_gate_up_exps", "count", "rows", "width")
            return
        if self.is_gated:
            self.gate = weight("ffn_gate_exps", "count", "inner", "width", needed=True)
        self.up = weight("ffn_up_exps", "count", "inner", "width")

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (tokens, width) to (tokens, width), with the residual added."""
        gates = () if self.shared_gate is None else (self.shared_gate,)
        logits, *gate = fused_linear(x, self.router, *gates)
        mixed = self.chosen(x, *self.routing.choose(logits, self.choice_bias))
        if self.shared is not None:
            return mixed.add(self._run_shared(self.shared, x, residual, *gate))
        return mixed if residual is None else residual.add(mixed)

    def chosen(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Sum the experts `ids` of (tokens, width), times `weights`: both (tokens, used)."""
        rows, weights = x.reshape(-1, 1, self.width), weights.reshape(-1, self.routing.used, 1)
        if self.weighs_inputs:
            return self.down.by(ids, self._inner(rows * weights, ids)).sum(1)
        return (self.down.by(ids, self._inner(rows, ids)) * weights).sum(1)

    def _inner(self, rows: Tensor, ids: Tensor) -> Tensor:
        up = self.up.by(ids, rows)
        if not self.is_gated:
            return activated(self.activation, up)
        if self.gate is not None:
            return gated(self.activation, self.gate.by(ids, rows), up)
        return gated(self.activation, *up.chunk(-1, self.inner))

    def _run_shared(
        self, shared: MLP, x: Tensor, residual: Tensor | None, gate: Tensor | None = None
    ) -> Tensor:
        """Run the network of all tokens, with its gate if there is one."""
        if gate is None:
            return shared.forward(x, residual)
        y = shared.forward(x).mul(gate.sigmoid())
        return y if residual is None else residual.add(y)
