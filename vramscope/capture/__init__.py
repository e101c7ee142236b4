"""Out of a live process: the only folder, with integrations/, that knows torch."""
