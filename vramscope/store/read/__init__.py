"""Reading a trace directory: while it grows, after a crash, and after its oldest parts were compacted."""
