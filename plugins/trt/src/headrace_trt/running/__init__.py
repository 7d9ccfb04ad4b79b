"""Running engines: batches gathered into buffers, execution contexts, graphs, and results that own their memory."""
