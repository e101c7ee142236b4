"""A loop that uses accelerate: the tracker records it, and the trackers after it get the peaks."""

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

from vramscope.integrations.accelerate import VramscopeTracker


class Printer(GeneralTracker):
    """A tracker that prints; "wandb" or "tensorboard" would stand here."""

    name = "printer"
    requires_logging_directory = False
    tracker = None

    def store_init_configuration(self, values):
        pass

    def log(self, values, step=None, **_):
        print(f"step {step}: {values['vram/peak_allocated_bytes']:,} bytes at the peak")


torch.manual_seed(0)
tracker = VramscopeTracker("traces/accelerate", device="simulated", quiet=True)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=[tracker, Printer()])
# Old versions of accelerate (1.1) begin no tracker without a config.
accelerator.init_trackers("example", config={})
net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
for number in range(12):
    with accelerator.accumulate(net):
        accelerator.backward(net(torch.randn(64, 512)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients and number % 4 == 3:
        accelerator.log({}, step=(number + 1) // 2)
accelerator.end_training()
