"""Pages to look at: one file each, that loads nothing from elsewhere."""

from transformer_nfn.reports.heatmap import HeatMap, legend
from transformer_nfn.reports.page import Page
from transformer_nfn.reports.tree import Twig, draw_tree

__all__ = ["HeatMap", "Page", "Twig", "draw_tree", "legend"]
