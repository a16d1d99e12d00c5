"""From finished cells to figures: scores, learning curves, transfer, and their tables."""
