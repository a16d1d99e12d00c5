"""Text from strangers on its way out: to a terminal, into a picture, a page or a spreadsheet."""

from transformer_nfn.escaping.pages import for_page
from transformer_nfn.escaping.pictures import for_picture
from transformer_nfn.escaping.spreadsheets import for_spreadsheet, from_spreadsheet
from transformer_nfn.escaping.terminals import for_terminal

__all__ = ["for_page", "for_picture", "for_spreadsheet", "for_terminal", "from_spreadsheet"]
