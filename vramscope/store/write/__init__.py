"""Writing a trace directory: files that only grow, and the manifest that describes them."""
