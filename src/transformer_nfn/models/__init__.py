"""Models that read the weights of transformers."""
