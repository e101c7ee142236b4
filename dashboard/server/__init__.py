"""The server: the app with its shell, access checks, connections, and URLs for the scripts."""
