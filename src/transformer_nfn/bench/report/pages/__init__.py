"""The pages of a report, what writes each as Markdown and pictures, and what they share."""
