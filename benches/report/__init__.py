"""The measurements behind scripts/bench: one file a group of rows."""
