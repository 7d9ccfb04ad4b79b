"""The tools behind ``headrace trt``: functions, whose results the command line prints.

They stand on what builds and runs engines, which imports none of them. What a build itself needs of
tactics and quantization is in ``headrace_trt.tactics`` and ``headrace_trt.quantization``.
"""
