"""Regression on rows of features: trees, a kernel, and both together."""
