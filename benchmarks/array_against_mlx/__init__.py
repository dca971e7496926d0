"""Comparison of functions of `wgpu_backend.array` with MLX's; see `__main__`."""
