"""Matrix products with weights: one op, its prologue and epilogue as data, and its fusion rules."""

from __future__ import annotations


def __getattr__(name: str) -> frozenset[str]:
    """Give `EVERY_PRODUCT` to importers of ``wgpu_backend.ops.rounding``, which moved here."""
    if name != "EVERY_PRODUCT":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported late: it imports ops that import this package.
    from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT

    return EVERY_PRODUCT
