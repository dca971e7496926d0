"""Shapes, copies, views and new tensors."""
