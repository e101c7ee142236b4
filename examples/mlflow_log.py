"""Every step's peak in a run of MLflow (here in a local file), and the page of the recording beside it."""

import mlflow
from _training import train

from vramscope.integrations.loop import VramscopeHandler
from vramscope.integrations.mlflow import MlflowLog

mlflow.set_tracking_uri("sqlite:///mlflow.db")
with (
    mlflow.start_run() as run,
    VramscopeHandler("traces/mlflow", log=MlflowLog(), every=1, device="simulated", quiet=True) as handler,
):
    train(handler)
client = mlflow.MlflowClient()
history = client.get_metric_history(run.info.run_id, "vram/peak_allocated_bytes")
print(f"{len(history)} steps, {max(each.value for each in history):,.0f} bytes at the peak")
print(*(file.path for file in client.list_artifacts(run.info.run_id)))
