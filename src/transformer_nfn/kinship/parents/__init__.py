"""Which of several networks one was made of: copies, merges, stacked blocks."""
