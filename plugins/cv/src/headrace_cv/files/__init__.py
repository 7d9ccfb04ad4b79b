"""Image files in memory: their formats and headers, decoded within limits, and encoded."""
