"""The five papers: their tables, recipes, the authors' checkpoints, and studies with human raters."""
