"""Exactness and speed of the group, layers and models."""
