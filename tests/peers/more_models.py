"""Models beyond classification, written as their papers' code writes them, which tests/peers/import.py imports."""
import torch
from torch import nn
import torch.nn.functional as F


def dcgan_generator(nz=100, ngf=64, nc=3):
    """pytorch/examples' DCGAN"""
    return nn.Sequential(
        nn.Unflatten(1, (nz, 1, 1)),
        nn.ConvTranspose2d(nz, ngf * 8, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 8), nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 8, ngf * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
        nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
        nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False), nn.Tanh())


class ResBlock(nn.Module):
    def __init__(self, before, after, embedded):
        super().__init__()
        self.norm1 = nn.GroupNorm(8, before)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.time = nn.Linear(embedded, after)
        self.norm2 = nn.GroupNorm(8, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(t))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return self.skip(x) + h


class Attention(nn.Module):
    def __init__(self, channels, heads=4):
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        y, _ = self.attention(y, y, y, need_weights=False)
        return x + y.transpose(1, 2).reshape(b, c, h, w)


class DiffusionUNet(nn.Module):
    """A UNet of a diffusion model: the noisy image and features of its time step"""

    def __init__(self, width=32, time=64):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(time, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = ResBlock(width, width, 4 * width)
        self.half1 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2 = ResBlock(width, 2 * width, 4 * width)
        self.half2 = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1)
        self.middle1 = ResBlock(2 * width, 2 * width, 4 * width)
        self.attention = Attention(2 * width)
        self.middle2 = ResBlock(2 * width, 2 * width, 4 * width)
        self.up2 = ResBlock(4 * width, width, 4 * width)
        self.up1 = ResBlock(2 * width, width, 4 * width)
        self.norm = nn.GroupNorm(8, width)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t):
        t = self.embed(t)
        one = self.down1(self.first(x), t)
        two = self.down2(self.half1(one), t)
        y = self.middle2(self.attention(self.middle1(self.half2(two), t)), t)
        y = self.up2(torch.cat((F.interpolate(y, scale_factor=2), two), 1), t)
        y = self.up1(torch.cat((F.interpolate(y, scale_factor=2), one), 1), t)
        return self.last(F.silu(self.norm(y)))


class Speech(nn.Module):
    """DeepSpeech 2's shape: convolutions over a spectrogram, a recurrent network, characters"""

    def __init__(self, mels=64, hidden=128, characters=29):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 32, (11, 11), stride=(2, 2), padding=(5, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
                                  nn.Conv2d(32, 32, (11, 11), stride=(2, 1), padding=(5, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20))
        self.rnn = nn.GRU(32 * mels // 4, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(2 * hidden, characters)

    def forward(self, x):
        x = self.conv(x)
        x = x.flatten(1, 2).transpose(1, 2)
        x, _ = self.rnn(x)
        return self.fc(x).transpose(1, 2)
