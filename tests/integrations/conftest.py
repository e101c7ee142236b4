"""Real frameworks, which are looked at as their users do; a test skips where its framework is missing."""

import pytest


def pytest_collection_modifyitems(items):
    """Warnings of a framework are its own."""
    for item in items:
        if "tests/integrations" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture
def callback(request, tmp_path):
    """The callback of a file's ``CALLBACK``, on the simulated device."""
    return request.module.CALLBACK(tmp_path / "run", device="simulated", quiet=True)


@pytest.fixture
def recording_of():
    """``recording_of(callback)``: the only recording of a training that has ended."""

    def load(callback):
        (recording,) = callback.recording.recorder.load().recordings
        return recording

    return load
