"""Models: reading files and modules of models, and running them on the rows of a batch."""
