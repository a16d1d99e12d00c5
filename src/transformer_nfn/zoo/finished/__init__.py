"""What is done with a zoo that is there: figures, a card, checks, files of single networks."""
