"""Questions about recordings that pages ask: cached answers, live runs, background searches."""
