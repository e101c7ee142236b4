"""An endpoint for Prometheus in the training process; the example scrapes it itself."""

from urllib.request import urlopen

from _training import train

from vramscope.integrations.loop import VramscopeHandler
from vramscope.integrations.prometheus import serve_recorder

with VramscopeHandler("traces/prometheus", device="simulated", quiet=True) as handler:
    metrics = serve_recorder(handler.recording.recorder, port=0)
    train(handler)
with urlopen(metrics.url, timeout=60) as answer:
    print("".join(line for line in answer.read().decode().splitlines(True) if line.startswith("vramscope_")))
