"""Gathering requests into batches and handing the batches out to instances."""
