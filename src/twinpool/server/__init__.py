"""The HTTP front; it talks to the engine process and imports no torch."""
