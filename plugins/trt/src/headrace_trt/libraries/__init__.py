"""The libraries below: the installed TensorRT, its log messages, and the runtime of CUDA."""
