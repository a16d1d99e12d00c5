"""Which data, splits and fits a figure comes from: a cell for each."""
