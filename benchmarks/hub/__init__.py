"""Bulk work on many checkpoints."""
