"""Zoos of networks that somebody has trained elsewhere: files, and a table of accuracies."""
