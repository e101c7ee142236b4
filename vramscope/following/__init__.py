"""One model of what grows with a recording, fed in pieces; a finished recording is one that was fed once."""
