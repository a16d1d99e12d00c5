"""BERT and what came after it, and PyTorch's own encoder."""
