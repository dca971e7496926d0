"""Ops that reshape, copy, view and create tensors."""
