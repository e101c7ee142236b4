"""What differs between versions of torch: its private functions, and the variables that it reads."""

import re


def version(text: str) -> tuple[int, ...]:
    """The major and the minor number of a version of torch: (2, 9) of ``2.9.1+cu128``."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:2])
