"""The known backends, policies and probes, and the distribution that brings each."""
