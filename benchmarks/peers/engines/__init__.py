"""One script per engine. Each runs under the Python of its own virtual environment and imports nothing of draftline's
but its own engine; ``wire.py`` beside them is plain standard library."""
