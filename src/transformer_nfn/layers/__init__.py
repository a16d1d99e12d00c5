"""Equivariant and invariant layers, derived from the declaration of a block."""
