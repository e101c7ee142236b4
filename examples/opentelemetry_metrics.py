"""The figures of a training on a meter of OpenTelemetry; here they are read in memory."""

from _training import train
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from vramscope.integrations.loop import VramscopeHandler
from vramscope.integrations.opentelemetry import observe

reader = InMemoryMetricReader()
with VramscopeHandler("traces/opentelemetry", device="simulated", quiet=True) as handler:
    observe(handler.recording.recorder, MeterProvider([reader]).get_meter("example"))
    train(handler)
for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
    for point in metric.data.data_points:
        print(metric.name, dict(point.attributes), f"{point.value:,}", metric.unit)
