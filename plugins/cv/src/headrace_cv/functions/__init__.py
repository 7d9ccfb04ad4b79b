"""The functions that the backends are made of: on images, tensors, boxes and scores, as numpy arrays, within limits."""
