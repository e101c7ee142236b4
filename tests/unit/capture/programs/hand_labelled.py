"""Training loops with a label beside every stretch: ``with now("forward"):``.

They run on whatever torch's default device is; nothing here knows vramscope.
"""

import contextlib

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

# What a label may be called by us: between the phases the program may do what it likes.
BETWEEN = "between"


class Truth:
    """The label of every birth, by its number; *n_born* is their number."""

    def __init__(self, n_born):
        self.n_born = n_born
        self.labels = []
        self.stack = [BETWEEN]

    @contextlib.contextmanager
    def __call__(self, label):
        self.settle()
        self.stack.append(label)
        try:
            yield
        finally:
            self.settle()
            self.stack.pop()

    def settle(self):
        """Everything born since the last time has the label of now."""
        self.labels += [self.stack[-1]] * (self.n_born() - len(self.labels))


class Net(nn.Module):
    """Two layers and, where asked, a second run of the inner one within backward."""

    def __init__(self, now, width=64, *, again=False):
        super().__init__()
        self.now = now
        self.again = again
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)

    def inner(self, x):
        with self.now("recompute" if self.now.stack[-1] == "backward" else self.now.stack[-1]):
            return functional.gelu(self.first(x)).sin()

    def forward(self, x):
        x = checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x)
        return self.last(x)


def device():
    return torch.ones(1).device.type


def batch(rows=32, width=64):
    return torch.randn(rows, width)


def plain(now, *, again=False):
    model = Net(now, again=again)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with now(BETWEEN):
            x = batch()
        with now("forward"):
            y = model(x)
        with now("loss"):
            loss = functional.mse_loss(y * 2, x)
        with now("backward"):
            loss.backward()
        with now(BETWEEN):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with now("optimizer"):
            optimizer.step()
        with now("zero_grad"):
            optimizer.zero_grad()


def checkpointing(now):
    plain(now, again=True)


def accumulation(now):
    model, criterion = Net(now), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        with now("zero_grad"):
            optimizer.zero_grad(set_to_none=False)
        for _ in range(3):
            x = batch()
            with now("forward"):
                y = model(x)
            with now("loss"):
                loss = criterion(y, x) / 3
            with now("backward"):
                loss.backward()
        with now("optimizer"):
            optimizer.step()


def gan(now):
    maker, critic = Net(now), Net(now)
    makers = torch.optim.Adam(maker.parameters())
    critics = torch.optim.RMSprop(critic.parameters())
    for _ in range(3):
        with now("forward"):
            fake = maker(batch_between(now))
            bad = critic(fake.detach())
            good = critic(batch_between(now))
        with now("loss"):
            loss = bad.mean() - good.mean()
        with now("backward"):
            loss.backward()
        with now("optimizer"):
            critics.step()
        with now("zero_grad"):
            critics.zero_grad()
        with now("forward"):
            out = critic(fake)
        with now("loss"):
            loss = -out.mean()
        with now("backward"):
            loss.backward()
        with now("optimizer"):
            makers.step()
        with now("zero_grad"):
            makers.zero_grad()
            critics.zero_grad()


def batch_between(now):
    with now(BETWEEN):
        return batch()


def closure(now):
    model = Net(now, 16)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = batch(width=16)

    def evaluate():
        with now("zero_grad"):
            optimizer.zero_grad()
        with now("forward"):
            y = model(x)
        with now("loss"):
            loss = functional.mse_loss(y, x)
        with now("backward"):
            loss.backward()
        return loss

    for _ in range(2):
        with now("optimizer"):
            optimizer.step(evaluate)


def scaler_that_skips(now):
    model = Net(now)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler(device(), init_scale=2.0**10)
    for turn in range(4):
        x = batch()
        with now("forward"), torch.autocast(device(), dtype=torch.bfloat16):
            y = model(x)
        with now("loss"):
            loss = scaler.scale(functional.mse_loss(y.float(), x) * (float("inf") if turn == 1 else 1))
        with now("backward"):
            loss.backward()
        with now("optimizer"):
            scaler.step(optimizer)
        scaler.update()
        with now("zero_grad"):
            optimizer.zero_grad()


def exceptions(now):
    """The 2nd forward and the 4th backward fail, and the loop goes on with the next batch."""
    model = Net(now)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for turn in range(6):
        x = batch(width=63 if turn == 1 else 64)
        try:
            with now("forward"):
                y = model(x)
            if turn == 3:
                y.register_hook(fail)
            with now("loss"):
                loss = functional.mse_loss(y, x)
            with now("backward"):
                loss.backward()
        except RuntimeError:
            continue
        with now("optimizer"):
            optimizer.step()
        with now("zero_grad"):
            optimizer.zero_grad()


def fail(_gradient):
    raise RuntimeError("the program's own")


def evaluation(now):
    model = Net(now)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for _ in range(3):
            x = batch()
            with now("forward"):
                y = model(x)
            with now("loss"):
                loss = functional.mse_loss(y, x)
            with now("backward"):
                loss.backward()
            with now("optimizer"):
                optimizer.step()
            with now("zero_grad"):
                optimizer.zero_grad()
        with torch.no_grad():
            for _ in range(2):
                x = batch()
                with now("eval"):
                    model(x)


def evaluation_with_gradients(now):
    model, criterion = Net(now), torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        model.eval()
        for _ in range(2):
            x = batch()
            with now("eval"):
                loss = criterion(model(x), x)
        model.train()
        for _ in range(3):
            x = batch()
            optimizer.zero_grad()
            with now("forward"):
                y = model(x)
            with now("loss"):
                loss = criterion(y, x)
            with now("backward"):
                loss.backward()
            with now("optimizer"):
                optimizer.step()


def several_forwards(now):
    encoder, decoder = Net(now), Net(now)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()])
    for _ in range(3):
        x = batch()
        with now("forward"):
            code = encoder(x)
            y = decoder(code)
        with now("loss"):
            loss = functional.mse_loss(y, x)
        with now("backward"):
            loss.backward()
        with now("optimizer"):
            optimizer.step()
        with now("zero_grad"):
            optimizer.zero_grad()


def by_hand(now):
    model = Net(now)
    for _ in range(3):
        x = batch()
        with now("forward"):
            y = model(x)
        with now("loss"):
            loss = functional.mse_loss(y, x)
        with now("backward"):
            loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.data -= 0.1 * parameter.grad
        with now("zero_grad"):
            model.zero_grad()


def gradients_asked_for(now):
    model = Net(now)
    for _ in range(3):
        x = batch().requires_grad_()
        with now("forward"):
            y = model(x)
        with now("loss"):
            total = y.sum()
        with now("backward"):
            (slope,) = torch.autograd.grad(total, x, create_graph=True)
        with now("loss"):
            loss = functional.mse_loss(y, x.detach()) + (slope.norm(dim=1) - 1).pow(2).mean()
        with now("backward"):
            gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)


def optimizers_in_backward(now):
    model = Net(now)
    optimizers = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in model.parameters()}

    def step(parameter):
        with now("optimizer"):
            optimizers[parameter].step()
        with now("zero_grad"):
            optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        x = batch()
        with now("forward"):
            y = model(x)
        with now("loss"):
            loss = functional.mse_loss(y, x)
        with now("backward"):
            loss.backward()


def with_a_loader(now):
    model, criterion = Net(now), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    data = [(torch.randn(64), number) for number in range(96)]
    with now("data"):
        loader = iter(DataLoader(data, batch_size=32))
    for _ in range(3):
        with now("data"):
            x, y = next(loader)
        with now("zero_grad"):
            optimizer.zero_grad()
        with now("forward"):
            scores = model(x)
        with now("loss"):
            loss = criterion(scores.float() * 2, y % 64)
        with now("backward"):
            loss.backward()
        with now("optimizer"):
            optimizer.step()


class Regions(nn.Module):
    """Regions for torch's profiler, within a module and around the loop."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with torch.profiler.record_function("part"):
            return self.inner(x).cos()


def named_for_the_profiler(now):
    model = Regions(Net(now))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with torch.profiler.record_function("train"):
        for _ in range(3):
            x = batch()
            with now("forward"):
                y = model(x)
            with now("loss"):
                loss = functional.mse_loss(y, x)
            with now("backward"):
                loss.backward()
            with now("optimizer"):
                optimizer.step()
            with now("zero_grad"):
                optimizer.zero_grad()


# With the number of steps that a person counts.
LOOPS = {
    plain: 3,
    checkpointing: 3,
    accumulation: 2,
    gan: 3,
    closure: 2,
    scaler_that_skips: 4,
    exceptions: 4,
    evaluation: 6,
    evaluation_with_gradients: 6,
    several_forwards: 3,
    by_hand: 3,
    gradients_asked_for: 3,
    optimizers_in_backward: 3,
    with_a_loader: 3,
    named_for_the_profiler: 3,
}
