"""The Python side of python_test.cpp, with real torch and safetensors.

    python_peer.py write FOLDER     files for C++ to read: plain.pt, plain.safetensors and nets with what they compute
    python_peer.py check FOLDER     reads what C++ wrote there, made.pt and made.safetensors; exits with 1 if it is wrong
    python_peer.py parts FOLDER     the same for the checkpoint `parts` of three ranks, as docs/resume.md says
"""

import json
import pathlib
import sys
import warnings
import zipfile

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn


def plain():
    """Both sides make the same: number `i` counts up from `i`."""
    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
             torch.int8, torch.uint8]
    shapes = [(2, 3), (4,), (), (1, 2, 3), (0, 2), (5,), (2, 2), (7,), (3, 1)]
    tensors = {}
    for i, (dtype, shape) in enumerate(zip(types, shapes)):
        count = int(torch.tensor(shape).prod()) if shape else 1
        tensors[f"layer{i}.weight"] = (torch.arange(count) + i).to(dtype).view(shape)
    tensors["mask"] = torch.tensor([True, False])
    return tensors


def randomize(net):
    for name, tensor in net.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif tensor.is_floating_point():
            tensor.normal_(0, 0.3)
    return net.eval()


class Block(nn.Module):
    """torchvision's BasicBlock."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class TorchvisionResNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage in range(1, 5):
            outputs = width * 2 ** (stage - 1)
            blocks = [Block(inputs, outputs, 1 if stage == 1 else 2), Block(outputs, outputs, 1)]
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
            inputs = outputs
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def holder(**modules):
    module = nn.Module()
    for name, child in modules.items():
        module.add_module(name, child)
    return module


class ReferenceResNet(nn.Module):
    """The reference program's, as torchgpipe names it when it is cut after five layers."""

    def __init__(self, width, classes):
        super().__init__()
        head = nn.Conv2d(1, width, 7, 2, 3, bias=False)
        layers = [("input_layer", holder(out=nn.Sequential(head, nn.BatchNorm2d(width), nn.ReLU(),
                                                           nn.MaxPool2d(3, 2, 1))))]
        inputs = width
        for stage in range(1, 5):
            outputs = width * 2 ** (stage - 1)
            for number in (1, 2):
                block = Block(inputs, outputs, 2 if stage > 1 and number == 1 else 1)
                residual = holder()
                if block.downsample is not None:
                    residual.downsample = holder(out=block.downsample)
                parts = holder(conv1=block.conv1, bn1=block.bn1, conv2=block.conv2, bn2=block.bn2, residual=residual)
                parts.forward = block.forward
                layers.append((f"basic_block{stage}{number}", parts))
                inputs = outputs
        layers.append(("output_layer", holder(out=nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes)))))
        self.partitions = nn.ModuleList([holder(**dict(layers[:5])), holder(**dict(layers[5:]))])

    def forward(self, x):
        for partition in self.partitions:
            for layer in partition.children():
                x = layer.out(x) if hasattr(layer, "out") else layer(x)
        return x


def double_conv(inputs, outputs):
    return holder(double_conv=nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()))


def down(inputs, outputs):
    return holder(maxpool_conv=nn.Sequential(nn.MaxPool2d(2), double_conv(inputs, outputs)))


class UNet(nn.Module):
    """The U-Net under the reference program's names, or under those of the well-known one."""

    def __init__(self, width, known):
        super().__init__()
        self.known = known
        self.add_module("inc" if known else "InConv", double_conv(3, width))
        for i in range(1, 5):
            self.add_module(f"down{i}", down(width * 2 ** (i - 1), width * 2**i))
        for i in range(1, 5):
            channels = width * 2 ** (5 - i)
            up, conv = nn.ConvTranspose2d(channels, channels // 2, 2, 2), double_conv(channels, channels // 2)
            if known:
                self.add_module(f"up{i}", holder(up=up, conv=conv))
            else:
                self.add_module(f"UpT{i}", holder(out=nn.Sequential(up)))
                self.add_module(f"UpConv{i}", conv)
        self.add_module("outc" if known else "OutConv", holder(conv=nn.Conv2d(width, 2, 1)))

    def forward(self, x):
        x = (self.inc if self.known else self.InConv).double_conv(x)
        skips = []
        for i in range(1, 5):
            skips.append(x)
            pool, conv = getattr(self, f"down{i}").maxpool_conv
            x = conv.double_conv(pool(x))
        for i in range(1, 5):
            up = getattr(self, f"up{i}").up if self.known else getattr(self, f"UpT{i}").out
            conv = getattr(self, f"up{i}").conv if self.known else getattr(self, f"UpConv{i}")
            x = conv.double_conv(torch.cat([skips.pop(), up(x)], 1))
        return (self.outc if self.known else self.OutConv).conv(x)


def write(folder):
    torch.manual_seed(1)
    torch.save(plain(), folder / "plain.pt")
    save_file(plain(), folder / "plain.safetensors")
    torch.save({"a": torch.ones(4)}, folder / "doubled.pt")
    with warnings.catch_warnings(), zipfile.ZipFile(folder / "doubled.pt", "a") as archive:
        warnings.simplefilter("ignore")  # zipfile warns of the second entry
        archive.writestr("doubled/data/0", bytes(16))
    digits, photos = torch.rand(3, 1, 28, 28), torch.rand(2, 3, 32, 48)
    nets = {
        "torchvision": (TorchvisionResNet(4, 10), digits),
        "reference_resnet": (ReferenceResNet(4, 10), digits),
        "reference_unet": (UNet(4, known=False), photos),
        "known_unet": (UNet(4, known=True), photos),
    }
    for name, (net, inputs) in nets.items():
        randomize(net)
        torch.save({f"module.{key}": value for key, value in net.state_dict().items()}, folder / f"{name}.pt")
        with torch.no_grad():
            save_file({"inputs": inputs, "outputs": net(inputs).contiguous()}, folder / f"{name}_io.safetensors")


def read_hugging_face(folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    tensors = {}
    for name, file in index["weight_map"].items():
        with safe_open(folder / file, "pt") as opened:
            if opened.metadata()["format"] != "pt":
                sys.exit(f"{file} is not a file of PyTorch")
            tensors[name] = opened.get_tensor(name)
    if index["metadata"]["total_size"] != sum(t.nbytes for t in tensors.values()):
        sys.exit("the index has another total size")
    return tensors


def check(folder):
    expected = plain()
    for name, made in [("made.pt", torch.load(folder / "made.pt", weights_only=True)),
                       ("made_folder", read_hugging_face(folder / "made_folder")),
                       ("made.safetensors", load_file(folder / "made.safetensors"))]:
        if made.keys() != expected.keys():
            sys.exit(f"{name} holds {list(made)}")
        for key, tensor in expected.items():
            if made[key].dtype != tensor.dtype or not torch.equal(made[key], tensor):
                sys.exit(f"{name}: '{key}' is {made[key]}, not {tensor}")
    # A whole net, in the order that Python has its names, into torchvision's own class.
    net = TorchvisionResNet(4, 10)
    state = torch.load(folder / "made_torchvision.pt", weights_only=True)
    print(net.load_state_dict(state))
    io = load_file(folder / "torchvision_io.safetensors")
    with torch.no_grad():
        if not torch.allclose(net.eval()(io["inputs"]), io["outputs"], rtol=1e-4, atol=1e-4):
            sys.exit("made_torchvision.pt gives other logits")


def parts(folder):
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
    from read_checkpoint import read_checkpoint

    made, expected = read_checkpoint(folder / "parts"), plain()
    if made.keys() != expected.keys():
        sys.exit(f"the checkpoint holds {list(made)}")
    for key, tensor in expected.items():
        if made[key].dtype != tensor.dtype or not torch.equal(made[key], tensor):
            sys.exit(f"'{key}' is {made[key]}, not {tensor}")
    # A part is a plain file under unsplit names.
    rows = load_file(folder / "parts" / "weights.rank1.safetensors")["layer0.weight"]
    if not torch.equal(rows, expected["layer0.weight"][1:]):
        sys.exit(f"rank 1 has {rows} of layer0.weight")


if __name__ == "__main__":
    {"write": write, "check": check, "parts": parts}[sys.argv[1]](pathlib.Path(sys.argv[2]))
