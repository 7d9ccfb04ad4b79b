"""Embeddings over HTTP beside programs by hand."""
