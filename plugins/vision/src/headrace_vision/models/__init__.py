"""What a model file says of itself, and the outputs of networks as detections, classes, masks and tiles."""
