"""Mixture of experts: routing, work lists, and products by expert."""
