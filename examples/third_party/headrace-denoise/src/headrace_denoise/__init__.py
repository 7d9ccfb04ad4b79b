"""The Headrace backend Denoise, which wraps scikit-image."""
