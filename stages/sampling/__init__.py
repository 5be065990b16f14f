"""Choosing a row's token from its logits: exact under speculation, at every K. See docs/sampling.md."""
