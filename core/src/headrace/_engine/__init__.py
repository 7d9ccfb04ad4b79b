"""The running pipeline: it starts from a `Blueprint`, plain data with factories, and knows nothing else."""
