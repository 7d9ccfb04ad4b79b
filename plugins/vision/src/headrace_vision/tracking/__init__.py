"""Objects over the frames of a source: tracked, counted at lines and in zones, and drawn."""
