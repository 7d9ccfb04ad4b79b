"""Sources, models and sinks as one runner: who reads, where each frame goes, and a loop over the frames."""
