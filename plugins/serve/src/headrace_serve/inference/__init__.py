"""What both protocols share: requests made of tensors, how they are run, and tensors made of results."""
