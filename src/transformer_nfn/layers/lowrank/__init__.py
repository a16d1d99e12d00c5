"""Rows with parameters of rank R."""
