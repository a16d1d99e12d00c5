"""Kin among very many files: some kilobytes of each, compared by products of short vectors."""
