"""Llama and the decoders that are made like it."""
