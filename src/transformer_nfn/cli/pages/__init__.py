"""`--html`: what a command found, as a page to look at."""
