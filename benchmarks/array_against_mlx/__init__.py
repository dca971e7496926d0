"""Functions of `wgpu_backend.array` beside MLX's; `__main__` says how to run them."""
