"""Symmetries of a whole network: what they are, do and may do, drawn and stored."""
