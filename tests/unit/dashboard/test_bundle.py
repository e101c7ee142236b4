"""The scripts and sheets of the pages come as one file each, with everything that is in the folder."""

import re
from pathlib import Path

import pytest
from vramscope.dashboard.data import Data
from vramscope.dashboard.server.app import build_app
from vramscope.dashboard.server.compression import bundled
from vramscope.dashboard.server.security import Access

BASE = "http://127.0.0.1:8050"
ASSETS = Path(__file__).parents[3] / "dashboard" / "assets"


@pytest.mark.parametrize("kind", ["js", "css"])
def test_a_page_loads_one_file_that_has_every_file_of_the_folder(data: Data, kind: str) -> None:
    client = build_app(data, Access(None)).server.test_client()
    page = client.get("/", base_url=BASE).text
    (address,) = re.findall(rf'(?:src|href)="(assets/pages\.{kind}\?m=[0-9a-f]{{12}})"', page)
    served = client.get(f"/{address}", base_url=BASE).text
    files = [file for file in ASSETS.rglob(f"*.{kind}") if file.name != "theme.js"]

    assert len(files) > 5
    assert all(file.read_text(encoding="utf-8") in served for file in files)
    assert not re.findall(rf'(?:src|href)="[^"]*assets/(?!pages|theme)[^"]*\.{kind}', page)


def test_files_of_the_folder_come_before_those_of_its_folders(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "a.js").write_text("third")
    (tmp_path / "b.js").write_text("second // a comment without an end")
    (tmp_path / "a.js").write_text("first")

    assert bundled(tmp_path, "js") == "first\nsecond // a comment without an end\nthird"
