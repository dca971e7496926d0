"""Run machine-learning models on any GPU: every tensor op a WGSL compute shader."""

from __future__ import annotations

from pathlib import Path as _Path

# In a checkout `shaders/` and `models/` stand beside the package; in a wheel they are inside it.
__path__ += [str(p) for p in (_Path(__file__).parent.parent,) if (p / "shaders").is_dir()]

__version__ = "0.1.0"
