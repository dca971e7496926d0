"""Activations rounded for products: to eight or sixteen bits or f16, and norms joined with it."""
