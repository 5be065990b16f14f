"""``pipeline-serve``: the engines behind OpenAI's HTTP interface."""
