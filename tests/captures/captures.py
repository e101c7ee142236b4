"""Locates the captures that tests read: the project's own here, other people's beside the checkout."""

from pathlib import Path

OWN = Path(__file__).parent
OTHERS = OWN.parents[1].parent / "shared" / "snapshots"
"""Captures of others state no licence, so they are no part of the repository; where they are at hand they are
read as well."""
NO_OTHERS = f"captures of others are not at hand ({OTHERS})"


def genuine() -> list[Path]:
    """Histories of torch's genuine allocators, recorded by this project: present in every clone."""
    return sorted(OWN.glob("*.pickle.gz"))


def genuine_file(name: str) -> Path:
    """The genuine history of that name, such as ``"random_290"``."""
    return OWN / f"{name}.pickle.gz"


def snapshots(pattern: str = "s*.*", kinds: tuple[str, ...] = (".pickle", ".json")) -> list[Path]:
    """Other people's snapshots that match *pattern*; none where they are not at hand."""
    return [path for path in sorted(OTHERS.glob(pattern)) if path.suffix in kinds]
