"""A forward and a training step of ResNet-50 in plain Python torch, on random images and one-hot targets, with mean squared
error and SGD, as in PyTorch's tutorial on model parallelism."""
import torch
import torch.nn.functional as F

from measured_steps import job, place, report, run_steps, timed
from resnet50 import ResNet50

size = job(__doc__, lambda parser: parser.set_defaults(rows=128, columns=128))
torch.manual_seed(1)
images = torch.randn(size.batch, 3, size.rows, size.columns)
targets = F.one_hot(torch.randint(1000, (size.batch,)), 1000).float()
model, images, targets = place(ResNet50(size.width), [images, targets], size)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loss = 0.0


def evaluate():
    model(images)


def gradients():
    global loss
    optimizer.zero_grad()
    value = F.mse_loss(model(images), targets)
    value.backward()
    loss = value.item()


model.eval()
with torch.inference_mode():
    forward = [timed(evaluate) for _ in range(size.warm_up + size.steps)]
model.train()
times = run_steps(size.warm_up, size.steps, gradients, optimizer.step)
report(model, loss, {**times, "forward_seconds": forward[size.warm_up:]})
