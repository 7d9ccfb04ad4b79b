"""The policies `Alike` and `Budget`: batches of requests that go well together."""
