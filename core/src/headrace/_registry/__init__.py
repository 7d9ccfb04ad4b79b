"""The known backends, definitions, policies and probes, and the distribution that brings each."""
