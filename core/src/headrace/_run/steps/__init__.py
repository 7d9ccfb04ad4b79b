"""The box, in which all changes of a pipeline's state are made, and the threads that run them."""
