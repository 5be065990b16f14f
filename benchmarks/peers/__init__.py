"""The race against other engines; see README.md in this folder."""
