"""The arrays of requests as tensors and rows, and the inputs of a model that they must fit."""
