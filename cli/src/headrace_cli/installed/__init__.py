"""Installed plugins: their commands, their certificates, and what is wrong with them."""
