"""Towers for sound, one file for each kind; see `wgpu_backend.nn.tower`."""
