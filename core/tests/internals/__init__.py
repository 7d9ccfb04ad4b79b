"""What tests know of the private parts of core: here, and nowhere else, a test adapts to a change of these parts."""
