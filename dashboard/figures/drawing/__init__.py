"""Parts that figures share: series on an axis, reduction to pixels, colors, names, phase lanes."""
