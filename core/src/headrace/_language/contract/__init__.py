"""What a backend is and is given: `backend`, `groups` and `options` are what authors read, `checked` and `shared` stand behind."""
