"""What a GPU's compiler makes of the kernels, without a GPU: ``python -m benchmarks.gpu_costs``."""
