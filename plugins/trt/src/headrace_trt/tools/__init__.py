"""The tools behind ``headrace trt``: functions, whose results the command line prints.

They stand on what builds and runs engines, which imports none of them.
"""
