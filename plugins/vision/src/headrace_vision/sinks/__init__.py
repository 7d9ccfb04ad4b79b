"""What frames go to: their queues and spools, files and how long they stay, other programs, and the live page."""
