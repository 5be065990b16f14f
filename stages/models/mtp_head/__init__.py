"""A trained MTP head that comes in a folder of its own, beside the target's: ``--mtp DIR``."""
