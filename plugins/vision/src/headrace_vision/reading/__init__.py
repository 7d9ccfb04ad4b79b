"""How a source becomes frames: files, cameras, addresses and pictures, their packets, times and damage."""
