"""ResNet-18 under torchvision's names, without torchvision: loads FOLDER/ours and writes its logits in evaluation mode,
then writes weights of its own, after two batches of training that move the running statistics, and theirs."""
import math
import sys

import torch
from pytorch_weights import read, write
from torch import nn


def conv(a, b, kernel, stride):
    return nn.Conv2d(a, b, kernel, stride, kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(a, b, 3, stride), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = conv(b, b, 3, 1), nn.BatchNorm2d(b)
        self.downsample = nn.Sequential(conv(a, b, 1, stride), nn.BatchNorm2d(b)) if stride > 1 or a != b else None

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = conv(3, 64, 7, 2), nn.BatchNorm2d(64)
        for i, (a, b) in enumerate(((64, 64), (64, 128), (128, 256), (256, 512)), 1):
            setattr(self, f"layer{i}", nn.Sequential(Block(a, b, 1 + (a != b)), Block(b, b, 1)))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def images(offset):
    return torch.tensor([math.sin(0.37 * i + offset) for i in range(2 * 3 * 64 * 64)]).reshape(2, 3, 64, 64)


def save_logits(net, path):
    with torch.no_grad(), open(path, "w") as f:
        f.writelines(f"{y:.9g}\n" for y in net.eval()(images(0)).flatten().tolist())


def main(folder):
    net = ResNet18()
    print("#", net.load_state_dict(read(f"{folder}/ours")))
    print("# batches", net.bn1.num_batches_tracked.item())
    save_logits(net, f"{folder}/ours.txt")
    torch.manual_seed(1)
    net = ResNet18()
    for offset in (1, 2):
        net(images(offset))
    write(f"{folder}/theirs", net.state_dict())
    save_logits(net, f"{folder}/theirs.txt")


if __name__ == "__main__":
    main(sys.argv[1])
