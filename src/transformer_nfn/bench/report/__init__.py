"""From finished cells to figures, tables, pictures and pages."""
