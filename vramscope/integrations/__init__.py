"""Integrations with other frameworks: one a file, each imports its framework late."""
