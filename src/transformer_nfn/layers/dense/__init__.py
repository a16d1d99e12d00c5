"""Rows run as few dense contractions."""
