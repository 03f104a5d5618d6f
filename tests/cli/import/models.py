"""Models that tests/cli/import.sh imports"""
import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, act):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.act = act

    def forward(self, x):
        y = self.up(self.norm(x))
        y = F.gelu(y) if self.act == "gelu" else F.relu(y)
        x = x + self.down(y)
        return x


class Net(nn.Module):
    def __init__(self, width=8, depth=3, act="gelu", classes=5):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 2, stride=2), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.blocks = nn.ModuleList([Block(width, act) for _ in range(depth)])
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.fc(self.drop(x.mean(1)))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.fc = nn.Linear(8, 30)

    def forward(self, x):
        return self.fc(self.embed(x))


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        return self.fc(x)


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        for _ in range(3):
            x = torch.cumsum(x, 1)
        return self.fc(x)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, a, b):
        return self.fc(a + b)


class Two(nn.Module):
    """Of tokens and an image"""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.head = nn.Linear(24, 5)

    def forward(self, input_ids, pixel_values):
        words = self.embed(input_ids).mean(1)
        image = self.conv(pixel_values).mean((2, 3))
        both = torch.cat((words, image), 1)
        return self.head(both)


def broken():
    raise ValueError("no such size")


def number():
    return 3
