"""What both protocols share: requests made of tensors, and tensors made of results."""
