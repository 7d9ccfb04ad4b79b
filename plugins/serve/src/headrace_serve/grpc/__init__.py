"""gRPC: the service, its messages, tensors in protobuf, health and reflection."""
