"""Networks that read images."""
