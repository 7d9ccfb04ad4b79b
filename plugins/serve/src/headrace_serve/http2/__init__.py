"""HTTP/2 as a server speaks it. It knows nothing of what is asked and answered."""
