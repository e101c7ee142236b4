"""What was recorded: frozen columns that know nobody."""
