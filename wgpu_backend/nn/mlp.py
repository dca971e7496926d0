"""Feed-forward networks: two or three matrices and an activation, experts, and a classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from wgpu_backend.errors import ModelError
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import ExpertLinear, Linear, Norm, fused_linear
from wgpu_backend.nn.module import Module, Shape, weight

Activation = Callable[[Tensor], Tensor]
Gated = Callable[[Tensor, Tensor], Tensor]

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": lambda x: x.silu(),
    "gelu": lambda x: x.gelu(),
    "gelu_erf": lambda x: x.gelu_erf(),
    "gelu_quick": lambda x: x.mul(x.scale(factor=1.702).sigmoid()),  # Hendrycks & Gimpel 2016, §2
    "linear": lambda x: x,
    "relu": lambda x: x.relu(),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "relu2": lambda x: x.relu().sqr(),  # So et al. 2021, "Primer", §3
}
_GATED: Mapping[str, Gated] = {
    "silu": lambda gate, up: gate.swiglu(up),
    "gelu": lambda gate, up: gate.geglu(up),
    "gelu_erf": lambda gate, up: gate.geglu_erf(up),
    "relu": lambda gate, up: gate.reglu(up),
    "silu_oss": lambda gate, up: BoundedSwiglu()(gate, up),
}


@dataclass(frozen=True, slots=True)
class BoundedSwiglu:
    """The gated activation of gpt-oss, with adjustable constants; see ``silu_alpha_limit``."""

    # The published code has alpha as a constant; the limit is its `swiglu_limit`.
    alpha: float = 1.702
    limit: float = 7.0

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return the activation of the gate, times `up`."""
        return gate.silu_alpha_limit(up, self.alpha, self.limit)


AnyActivation = str | Activation | BoundedSwiglu


def activated(activation: AnyActivation, x: Tensor) -> Tensor:
    """Apply an activation, a name in `ACTIVATIONS` or a function, to (..., cols)."""
    require_activation(activation)
    if isinstance(activation, BoundedSwiglu):
        raise ModelError("activation is a bounded SwiGLU, which needs a gate")
    return (ACTIVATIONS[activation] if isinstance(activation, str) else activation)(x)


def require_activation(activation: AnyActivation, *, gated: bool = False) -> None:
    """Raise if no activation has this name.

    Parameters
    ----------
    gated : bool
        Whether activations that need a gate are allowed.

    Raises
    ------
    ModelError
        The name is unknown; the message lists the names.
    """
    known = {**ACTIVATIONS, **(_GATED if gated else {})}
    if isinstance(activation, str) and activation not in known:
        raise ModelError(f"activation is {activation!r}, needs one of {', '.join(known)}")


def gated(activation: AnyActivation, gate: Tensor, up: Tensor) -> Tensor:
    """Return the activation of the gate, times `up`; one op for most activations."""
    if isinstance(activation, BoundedSwiglu):
        return activation(gate, up)
    together = _GATED.get(activation) if isinstance(activation, str) else None
    return activated(activation, gate).mul(up) if together is None else together(gate, up)


class MLP(Module):
    """``down(activation(gate(x)) * up(x))``, or without a gate ``down(activation(up(x)))``.

    Shazeer 2020, "GLU Variants Improve Transformer". Biases are used where the file has them.
    Without ``ffn_gate``, the rows of ``ffn_up`` are those of the gate, then of the projection.

    Parameters
    ----------
    activation : str or callable
        Name in `ACTIVATIONS`, or a function of one tensor; the file's ``feed_forward_activation``
        overrides it.
    gated : bool
        Whether there is a gate.
    inner : int or None
        Values between the matrices; None for ``feed_forward_length``.
    suffix : str
        Suffix of the names of the weights: ``"_shexp"`` for shared experts.
    norm : str or None
        Name of a norm before `down`.

    Raises
    ------
    ModelError
        No activation has this name.
    """

    gate: Linear | None = None
    up: Linear
    down: Linear
    norm: Norm | None = None

    def __init__(
        self,
        config: LayerConfig,
        activation: AnyActivation = "silu",
        *,
        gated: bool = True,
        inner: int | None = None,
        suffix: str = "",
        norm: str | None = None,
    ) -> None:
        activation = config.activation(activation)
        require_activation(activation, gated=gated)
        self.width, self.activation, self.gated = config.width, activation, gated
        # Files may lack the key for shared experts; columns of the down matrix are the same width.
        own = config.get_shape(f"ffn_down{suffix}.weight") or (0, 0)
        self.inner = inner or config.uint("feed_forward_length", own[-1], at_least=1)
        rows = (config.get_shape(f"ffn_up{suffix}.weight") or (0, 0))[0]
        # No key marks a joint weight of gate and projection; twice the rows do.
        joined = f"ffn_gate{suffix}.weight" not in config and rows == 2 * self.inner
        self.rows = self.inner * (2 if gated and joined else 1)
        self.norm = config.norm(norm, "inner")
        gate, up, down = (f"ffn_{part}{suffix}" for part in ("gate", "up", "down"))
        if gated and not joined:
            self.gate = weight(gate, "inner", "width", needed=True)
        self.up = weight(up, "rows", "width")
        self.down = weight(down, "width", "inner")

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map (tokens, width) to (tokens, width), with the residual added."""
        y = self._inner(x)
        return self.down(y if self.norm is None else self.norm(y), residual)

    def _inner(self, x: Tensor) -> Tensor:
        if not self.gated:
            return activated(self.activation, self.up(x))
        if self.gate is not None:
            return gated(self.activation, self.gate(x), self.up(x))
        return gated(self.activation, *self.up(x).chunk(-1, self.inner))


# Mixtures of experts: a router chooses a few networks for each token.


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
                f"{used} of {experts} experts, in {groups_used} of {groups} groups; needs at most "
                "as many used as there are, and groups of equal size"
            )
        # 0 is llama.cpp's number for none, and means the default of the architecture.
        number = keys.uint("expert_gating_func", 0)
        if number and number not in _BY_NUMBER:
            raise config.fail(f"expert_gating_func is {number}, needs 1 to {len(_BY_NUMBER)}")
        return cls(
            experts,
            used,
            _BY_NUMBER.get(number, scores),
            keys.bool("expert_weights_norm", normalised),
            # 0 stands for no scale, as in llama.cpp; as a factor it would remove the experts.
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
        # Without the bias, which only balances the choice (DeepSeek-V3, §2.1.2).
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
        # Converters have used both names for this bias.
        for name in ("exp_probs_b", "exp_probs_b.bias"):
            if name in config:
                one = (1,) * (len(config.get_shape(name) or ()) - 1)
                self.choice_bias = weight(name, *one, "count")
        down = config.get_shape("ffn_down_shexp.weight")
        if down is not None:
            # Shared experts are stored as one network: if the key is 0, the matrix has its width.
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
            # The shared network takes the residual: its last product adds one in its own kernel.
            return mixed.add(self._run_shared(self.shared, x, residual, *gate))
        return mixed if residual is None else residual.add(mixed)

    def chosen(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Sum the experts `ids` of (tokens, width), times `weights`: both (tokens, used)."""
        rows, weights = x.reshape(-1, 1, self.width), weights.reshape(-1, self.routing.used, 1)
        # The activation makes a difference between weighing inputs and outputs of an expert.
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
        """Run the shared experts' network, with its gate if there is one."""
        if gate is None:
            return shared.forward(x, residual)
        y = shared.forward(x).mul(gate.sigmoid())
        return y if residual is None else residual.add(y)


# The classifier that scores a text by one pooled state.


class Classifier(Module):
    """One or two matrices with an activation between them, as the file has them.

    Parameters
    ----------
    width : int
        Values of a state.
    shapes : mapping of str to tuple of int
        Shapes of all weights of the file, by name.
    make_norm : callable
        Makes the norm between the matrices, for files that have it.
    activation : str
        Name in `nn.mlp.ACTIVATIONS`.
    """

    dense: Linear | None = weight("cls", "inner", "width")
    norm: Norm | None = None
    output: Linear | None = weight("cls.output", "classes", "inner")

    def __init__(
        self,
        width: int,
        shapes: Mapping[str, Shape],
        make_norm: Callable[[], Norm],
        activation: str = "tanh",
    ) -> None:
        self.width, self.activation, self._make_norm = width, activation, make_norm
        # Without the first matrix, the second reads states of the model's width.
        self.inner = shapes.get("cls.weight", (width,))[0]
        self.classes = shapes.get("cls.output.weight", (0,))[0]

    def declare(self, has: Callable[[str], bool]) -> None:
        """Tag the norm if the file has it."""
        if has("cls.norm.weight"):
            self.norm = weight("cls.norm", "inner", kind=self._make_norm())

    @property
    def is_there(self) -> bool:
        """Return whether the file has a classifier."""
        return self.dense is not None or self.output is not None

    def __call__(self, states: Tensor) -> Tensor:
        """Return the scores of (texts, width) states: (texts, classes)."""
        y = states
        if self.dense is not None:
            y = activated(self.activation, self.dense(y))
            y = y if self.norm is None else self.norm(y)
        # Scores rank texts, so a rounding error could swap two of them.
        return y if self.output is None else self.output.precise(y)
