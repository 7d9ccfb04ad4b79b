"""What a container needs whose part is built, and lives, elsewhere: see `headrace.isolation`."""
