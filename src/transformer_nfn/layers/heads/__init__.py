"""Heads and neurons one by one: their numbers, messages between them, and the layer."""
