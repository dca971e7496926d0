"""Mixtures of experts: routing, lists of work, products by expert."""
