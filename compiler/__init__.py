"""Graph and deployment in, plan out. Start with ``compile.py``; the nouns are in ``core.py`` and ``plan.py``."""
