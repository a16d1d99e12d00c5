"""What an element leaves between two checkpoints, unit by unit, against what rounding does."""
