"""Towers for pictures, one file for each kind; see `wgpu_backend.nn.tower`."""
