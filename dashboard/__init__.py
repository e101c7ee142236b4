"""The Dash app; imported as vramscope.dashboard."""
