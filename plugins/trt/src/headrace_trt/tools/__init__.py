"""The tools behind ``headrace trt``: each is a function, and the command line prints what it gives."""
