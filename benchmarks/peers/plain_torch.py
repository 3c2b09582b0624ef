"""A training step of the U-Net in plain Python torch."""
import torch

from measured_steps import job, measure
from nets import Plain, unet

size = job(__doc__)
torch.manual_seed(1)
measure(Plain(unet(size.width)), size)
