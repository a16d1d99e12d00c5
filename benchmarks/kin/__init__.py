"""Fingerprints, sketches and who comes from whom."""
