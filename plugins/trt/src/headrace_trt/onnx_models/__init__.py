"""ONNX models: files and their graphs, inputs that are images, precision and quantization."""
