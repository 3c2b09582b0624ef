"""A training step of the U-Net in plain Python torch."""
import torch

from measured_steps import job, report, run_steps
from unet import UNet, loss_of, rmsprop


def main():
    size = job(__doc__)
    torch.manual_seed(1)
    model = UNet(size.width)
    optimizer = rmsprop(model.parameters())
    images = torch.rand(size.batch, 3, size.rows, size.columns)
    masks = torch.randint(2, (size.batch, size.rows, size.columns))
    loss = 0.0

    def gradients():
        nonlocal loss
        optimizer.zero_grad()
        value = loss_of(model(images), masks)
        value.backward()
        loss = value.item()

    times = run_steps(size, gradients, optimizer.step)
    report(times, parameters=sum(p.numel() for p in model.parameters()), loss=loss, threads=torch.get_num_threads(),
           torch=torch.__version__)


main()
