"""What `vision.toml` says: its tables, and what is built of it."""
