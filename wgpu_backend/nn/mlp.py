"""Feed-forward networks: two or three matrices and an activation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wgpu_backend.errors import ModelError
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import Linear, Norm
from wgpu_backend.nn.module import Module, weight

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
        raise ModelError(f"activation is {activation!r}, known are {', '.join(known)}")


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
        own = config.get_shape(f"ffn_down{suffix}.weight") or (0, 0)
        self.inner = inner or config.uint("feed_forward_length", own[-1], at_least=1)
        rows = (config.get_shape(f"ffn_up{suffix}.weight") or (0, 0))[0]
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
