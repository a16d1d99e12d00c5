"""Encoders with a decoder that reads what they made."""
