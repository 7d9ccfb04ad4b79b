"""The tools behind ``headrace trt``: functions, whose results the command line prints."""
