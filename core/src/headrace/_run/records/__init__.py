"""What is counted, logged and told of batches and requests."""
