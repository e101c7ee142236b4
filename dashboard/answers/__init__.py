"""What pages ask of a recording, one that grows or one that is finished."""
