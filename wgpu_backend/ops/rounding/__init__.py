"""Activations rounded for products: to eight bits or f16, and norms joined with it."""
