"""Text that must have a form: which tokens a request may go on with. See docs/structured.md."""
