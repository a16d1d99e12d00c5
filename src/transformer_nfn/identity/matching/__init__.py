"""The search for an element that carries one checkpoint to another."""
