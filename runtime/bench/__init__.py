"""``pipeline-bench``: load on an OpenAI-compatible server, measured from outside."""
