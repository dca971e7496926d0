"""Static costs of kernels by GPU compilers, without a GPU: ``python -m benchmarks.gpu_costs``."""
