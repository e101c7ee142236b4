"""Keeping a trace below a size: the oldest parts are replaced by a summary of them."""
