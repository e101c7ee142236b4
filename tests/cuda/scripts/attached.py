"""``python attached.py RUN DEVICE N``: a training that is attached to N times, then the same one alone.

Prints the losses of both as JSON. While it is recorded, each step leaves a mark with what torch counts.
"""

import json
import os
import sys
import threading
import time

import torch

import vramscope
from vramscope.commands._attached_process import answer_of
from vramscope.recorder import active_recorder

RUN, DEVICE, TIMES = sys.argv[1], sys.argv[2], int(sys.argv[3])


def counted():
    return torch.cuda.memory_allocated() if DEVICE == "cuda" else 0


def train(goes_on):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Dropout(0.1), torch.nn.Linear(256, 8))
    if DEVICE == "cuda":
        model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    losses, kept = [], []
    while goes_on(len(losses)):
        device = next(model.parameters()).device
        loss = model(torch.randn(16, 64, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        # What is alive when somebody attaches differs from time to time.
        kept = [*kept[-7:], torch.empty(1000 * (len(losses) % 50), device=device)]
        recorder = active_recorder()
        if recorder is not None:
            recorder.mark(str(counted()))
        time.sleep(0.001)
    return losses, torch.get_rng_state().sum().item()


def attach_and_detach():
    try:
        for _ in range(TIMES):
            answers.append(answer_of(os.getpid(), {"do": "attach", "options": options}))
            time.sleep(0.05)
            answers.append(answer_of(os.getpid(), {"do": "detach"}))
    except BaseException as error:
        answers.append(repr(error))
        raise
    finally:
        is_over.set()


# A main thread that waits for another one is woken up, and goes on waiting.
def attach_while_it_waits():
    waited.append(
        answer_of(os.getpid(), {"do": "attach", "options": {"mode": "counters", "directory": f"{RUN}-w"}})
    )
    waited.append(answer_of(os.getpid(), {"do": "detach"}))


vramscope.allow_attach()
options = {"directory": RUN, "device": DEVICE}
answers, waited, is_over = [], [], threading.Event()
driver = threading.Thread(target=attach_and_detach)
driver.start()
attached = train(lambda _: not is_over.is_set())
driver.join()
plain = train(lambda n: n < len(attached[0]))
waiter = threading.Thread(target=attach_while_it_waits)
waiter.start()
waiter.join()
print(json.dumps({"attached": attached, "plain": plain, "answers": answers, "waited": waited}))
time.sleep(0.2)  # torch aborts at exit while autograd's thread still lets go of its last backward pass
