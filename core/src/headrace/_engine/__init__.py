"""The running pipeline: it starts from a blueprint, plain data with factories, and knows nothing else."""
