"""The probes: what they note of a running pipeline, and the metrics, spans, traces and pages that they make of it."""
