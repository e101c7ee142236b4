"""What pages share: header, figures' frames, tables, states. Layout and its callbacks together."""
