"""The pages of a report, one function each that writes Markdown and pictures."""
