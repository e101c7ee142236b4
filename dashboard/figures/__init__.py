"""Columns to plain dicts of Plotly JSON: pure, no Dash, no recordings opened."""
