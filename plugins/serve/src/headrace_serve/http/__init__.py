"""HTTP: the connection, the routes, tensors in JSON and in binary, metrics and the description of the interface."""
