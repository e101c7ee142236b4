"""Panels of the pages: a figure or table with its heading, and the callbacks that fill it."""
