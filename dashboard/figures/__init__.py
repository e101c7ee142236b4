"""Figures: pure functions from columns to dicts of Plotly JSON, without Dash and without I/O."""
