"""What a process holds outside of torch beside other processes, by counters written out by hand."""

import pytest

from vramscope.analysis.shared_device import shared_device
from vramscope.model.counters import Counters
from vramscope.model.recording import Recording

MIB = 1 << 20


def found(*samples):
    """Each sample: bytes of the process, of torch's reserved memory, of others, and the drift; all in MiB."""
    process, reserved, others, drift = zip(*samples, strict=True)
    return shared_device(
        Recording(
            counters=Counters.of(
                time_ns=range(1, len(samples) + 1),
                process_used_bytes=[n * MIB if n >= 0 else -1 for n in process],
                reserved_bytes=[n * MIB for n in reserved],
                others_used_bytes=[n * MIB if n >= 0 else -1 for n in others],
                reserved_drift_bytes=[n * MIB for n in drift],
            )
        )
    )


def test_the_context_of_this_process_is_what_the_driver_counts_beyond_torch():
    (finding,) = found((540, 40, 0, 0), (900, 400, 1500, 0), (920, 400, 700, 0))

    assert finding.evidence == {"outside_bytes": 500 * MIB, "others_bytes": 1500 * MIB, "time_ns": 2}
    assert (finding.kind, finding.severity, finding.n_bytes) == ("shared_device", "info", 500 * MIB)


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param((540, 40, 0, 0), id="alone"),
        pytest.param((540, 40, 300, 0), id="a desktop, too small for such a context"),
        pytest.param((540, 40, -1, 0), id="others unknown"),
        pytest.param((-1, 40, 1500, 0), id="this process unknown, as in a container"),
        pytest.param((540, 40, 1500, 20), id="torch reserved meanwhile"),
        pytest.param((50, 40, 1500, 0), id="no context"),
    ],
)
def test_a_context_that_the_counters_do_not_show_is_not_reported(sample):
    assert found(sample) == []
