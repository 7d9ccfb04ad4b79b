"""What a backend is and is given: `backend` and `options` are what authors read, `checked` and `shared` stand behind."""
