"""Why two checkpoints differ: usual mistakes of those who fold, rotate, convert and store."""
