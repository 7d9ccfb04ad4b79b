"""The rules of the backend contract, by their subject."""
