"""``draftline-train-mtp``: an MTP head for a target that has none, distilled from the target's own text."""
