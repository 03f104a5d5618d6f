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


class Windows(nn.Module):
    """Attention in windows: rows of a table as a bias, a mask, what is written through a view"""

    def __init__(self, width=8, window=2):
        super().__init__()
        self.window = window
        self.table = nn.Parameter(torch.linspace(-1, 1, (2 * window - 1) ** 2 * 2).view(-1, 2))
        place = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = place[:, :, None] - place[:, None, :] + window - 1
        self.register_buffer("index", apart[0] * (2 * window - 1) + apart[1])
        self.qkv = nn.Linear(width, 3 * width)
        self.scale = nn.Parameter(torch.ones(2, 1, 1))
        self.fc = nn.Linear(4 * width, 5)

    def forward(self, x):
        n, h, w, c = x.shape
        s = self.window
        bias = self.table[self.index.flatten()].view(s * s, s * s, 2).permute(2, 0, 1).unsqueeze(0)
        qkv_bias = self.qkv.bias.clone()
        qkv_bias[c:2 * c].zero_()
        x = torch.roll(x, (-1, -1), (1, 2)).view(n, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)
        qkv = F.linear(x, self.qkv.weight, qkv_bias).view(-1, s * s, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        scores = F.normalize(qkv[0], dim=-1) @ F.normalize(qkv[1], dim=-1).transpose(-2, -1)
        scores = scores * self.scale.clamp(max=2.0).exp() + bias
        part = x.new_zeros((h, w))
        part[-1:] = 1
        part = part.view(h // s, s, w // s, s).permute(0, 2, 1, 3).reshape(-1, s * s)
        mask = (part.unsqueeze(1) - part.unsqueeze(2)).ne(0).float() * -100.0
        scores = scores.view(n, -1, 2, s * s, s * s) + mask.unsqueeze(1).unsqueeze(0)
        x = scores.view(-1, 2, s * s, s * s).softmax(-1) @ qkv[2]
        x = x.transpose(1, 2).reshape(n, h // s, w // s, s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.fc(x.mean((1, 2)))


class Written(nn.Module):
    """A view is written to, and what it is a view of is read"""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        x = x * 2
        x[:, 1:].relu_()
        return self.fc(x)


class Gated(nn.Module):
    """A convolution and a layer whose outputs gate each other, as a module and as a function"""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3)
        self.gate = nn.GLU(dim=1)
        self.fc = nn.Linear(24, 10)

    def forward(self, x):
        return F.glu(self.fc(self.gate(self.conv(x)).flatten(1)))


def broken():
    raise ValueError("no such size")


def number():
    return 3


class Tuned(nn.Module):
    """Blocks of which all but the last are frozen, and of that its norm; a frozen parameter"""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(8, "gelu") for _ in range(3)])
        self.scale, self.shift = nn.Parameter(torch.ones(8), requires_grad=False), nn.Parameter(torch.zeros(8))
        self.fc = nn.Linear(8, 5)
        self.blocks[:2].requires_grad_(False)
        self.blocks[2].norm.requires_grad_(False)

    def forward(self, x):
        for block in self.blocks:
            x = F.dropout(block(x), 0.5, self.training)
        return self.fc(x.mean(1) * self.scale + self.shift)


class Apart(nn.Module):
    """Two layers, called as a test says: without gradients, with a part of the parameters, or a part of them frozen"""

    def __init__(self, how):
        super().__init__()
        self.how, self.body, self.head = how, nn.Linear(4, 4), nn.Linear(4, 2)
        self.body.requires_grad_(how != "frozen,without-gradients")
        self.body.bias.requires_grad_(how != "frozen,without-gradients" and how != "a-frozen-bias")

    def forward(self, x):
        if self.how == "without-bias":
            return self.head(F.linear(x, self.body.weight))
        with torch.set_grad_enabled("without-gradients" not in self.how):
            x = self.body(x)
        return self.head(x)


class Again(nn.Module):
    """A method with a variable of the same name as its caller's, as those of nn.TransformerEncoderLayer"""

    def __init__(self):
        super().__init__()
        self.norm, self.fc, self.drop, self.head = nn.LayerNorm(4), nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 2)

    def block(self, x):
        x = self.fc(x)
        return self.drop(x)

    def forward(self, src):
        x = src
        x = x + self.block(self.norm(x))
        return self.head(x)


class Circular(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular")

    def forward(self, x):
        return self.conv(x).flatten(1)


class Shuffled(nn.Module):
    """Channels in groups that change places, as ShuffleNet's do"""

    def __init__(self, groups=2):
        super().__init__()
        self.conv, self.groups = nn.Conv2d(3, 12, 3), groups
        self.after, self.fc = nn.Conv2d(12, 4, 1), nn.Linear(4, 5)

    def forward(self, x):
        x = self.conv(x)
        n, c, h, w = x.shape
        x = x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return self.fc(self.after(x).mean((2, 3)))


class Called(nn.Module):
    """Layers that are called with more than a value, or whose parameters another function takes"""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.up = nn.ConvTranspose1d(4, 4, 3, stride=2, padding=1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):  # (N, 4, 8)
        mask = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
        if self.how == "mask":
            x, _ = self.attention(x, x, x, attn_mask=mask)
        elif self.how == "positional":
            x, _ = self.attention(x, x, x, None, False, mask)
        elif self.how in ("named", "weights"):
            x, _ = self.attention(query=x, key=2 * x, value=x, need_weights=self.how == "weights")
        elif self.how == "stride":
            x = F.conv1d(x, self.conv.weight, self.conv.bias, padding=2, dilation=2)
        elif self.how == "conv":
            x = F.conv1d(x, self.conv.weight, self.conv.bias, padding=1)
        elif self.how == "eps":
            x = F.layer_norm(x, (8,), self.norm.weight, self.norm.bias, 1e-2)
        elif self.how == "size":
            x = self.up(x, output_size=[16])[:, :, :8]
        elif self.how == "whole":
            x = x * x.to(torch.int64)
        return self.fc(x[:, -100:3].mean(1))


class Altered(nn.Module):
    """Layers that do something else than their class"""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.fc1 = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.fc2 = nn.Linear(6, 3)
        if how == "hook":
            self.fc1.register_forward_hook(lambda module, given, output: 2 * output)
        elif how == "own":
            self.fc1.forward = lambda x: F.linear(x, self.fc1.weight, self.fc1.bias) * 3

    def train(self, mode=True):
        super().train(mode)
        if self.how == "frozen":
            self.norm.eval()
        return self

    def forward(self, x):
        return self.fc2(torch.relu(self.norm(self.fc1(x))))


class Resized(nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.how = how
        self.conv = nn.Conv2d(3, 3, 3)
        self.fc = nn.Linear(3, 1)

    def forward(self, x):
        x = F.interpolate(x, mode="bilinear", **self.how)
        return self.fc(self.conv(x).mean((2, 3)))


class Recalled(nn.Module):
    """A module that is called more than once"""

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, y, x=None, double=False):
            y = self.fc(y)
            return (2 * y if double else y) if x is None else y - x

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.part = Recalled.Part()
        self.fc = nn.Linear(6, 3)

    def forward(self, x):  # (N, 4, 6)
        if self.how == "flag":
            y = self.part(x) + self.part(x, double=True)
        elif self.how == "sizes":
            y = self.part(x)[:, :3] + self.part(x[:, :3])
        elif self.how == "names":
            y = self.part(x=2 * x, y=x) + self.part(x, x.tanh())
        return self.fc(y.mean(1))


class InPlace(nn.Module):
    """What is written to where another name still holds it"""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.fc1 = nn.Linear(6, 6)
        self.relu = nn.ReLU(inplace=True)
        self.inner = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.ReLU(inplace=True), nn.Flatten())
        self.fc2 = nn.Linear(6, 3)

    def forward(self, x):
        x = self.fc1(x)
        y = x.view(-1, 2, 3)
        if self.how == "layer":
            self.relu(x)
        elif self.how == "function":
            F.relu(x, inplace=True)
        elif self.how == "child":
            return self.fc2(self.inner(x) + x)
        elif self.how == "part":
            self.relu(x[:, :3])
            return self.fc2(x)
        elif self.how == "result":
            return self.fc2(self.relu(x) + x)
        return self.fc2(y.flatten(1))


class Hooked(nn.Module):
    """Functions that see gradients"""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.fc1 = nn.Linear(6, 6)
        self.fc2 = nn.Linear(6, 3)
        if how == "parameter":
            self.fc1.weight.register_hook(lambda gradient: 2 * gradient)
        elif how == "accumulated":
            self.fc1.weight.register_post_accumulate_grad_hook(lambda parameter: None)
        elif how == "module":
            self.fc1.register_full_backward_hook(lambda module, into, out: None)
        elif how == "before":
            self.fc1.register_full_backward_pre_hook(lambda module, out: None)

    def forward(self, x):
        x = self.fc1(x)
        if self.how == "value":
            x.register_hook(lambda gradient: 2 * gradient)
        elif self.how == "kept":
            x.retain_grad()
        elif self.how == "late":
            self.fc2.weight.register_hook(lambda gradient: 2 * gradient)
        return self.fc2(x)


class Evaluated(nn.Module):
    """What model.eval() changes, or does not"""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.fc1 = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(6, 3)

    def train(self, mode=True):
        super().train(mode)
        if self.how == "layer":
            self.drop.train()
        return self

    def forward(self, x):
        x = self.fc1(x)
        if self.how == "always":
            x = F.dropout(x, 0.5)
        elif self.how == "never":
            x = F.dropout(x, 0.5, self.training)
        elif self.how == "layer":
            x = self.drop(x)
        elif self.how == "branch":
            x = torch.relu(x) if self.training else torch.tanh(x)
        elif self.how == "kept":
            self.features = [torch.relu(x)]
            x = x + self.features[0]
        elif self.how == "outputs":
            return (self.fc2(x), self.fc2(x.tanh())) if self.training else self.fc2(x)
        return self.fc2(x)


class Named(nn.Module):
    """Names that are words of Lua, or letters that it has not"""

    def __init__(self):
        super().__init__()
        self.end = nn.Linear(6, 6)
        self.function = nn.Linear(6, 3)
        self.register_buffer("scale", torch.linspace(0, 1, 6), persistent=False)

    def forward(self, x):
        μ = self.end(x)
        σ = μ.tanh()
        return self.function(σ * σ + μ * self.scale)


class Odd(nn.Module):
    """Parameters that are not imported"""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.fc = nn.LazyLinear(3) if how == "lazy" else nn.Linear(6, 3)
        if how == "half":
            self.fc.to(torch.bfloat16)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        x = self.fc(x)
        return x * self.scale if self.how == "scalar" else x[:, 0]


class Sides(nn.Module):
    """Blocks of two classes side by side"""

    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x):
            return x + self.fc(x)

    class B(A):
        def forward(self, x):
            return x - self.fc(x)

    def __init__(self):
        super().__init__()
        self.b, self.a = Sides.B(), Sides.A()

    def forward(self, x):
        return self.a(x) + self.b(x)


class Started(nn.Module):
    """Parameters by what they start as"""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.ones = nn.Parameter(torch.ones(6))
        self.zeros = nn.Parameter(torch.empty(6))
        nn.init.zeros_(self.zeros)
        self.full = nn.Parameter(torch.full((6,), 0.5))
        self.constant = nn.Parameter(torch.empty(6))
        nn.init.constant_(self.constant, val=0.25)
        self.scaled = nn.Parameter(1e-6 * torch.ones(6))
        self.drawn = nn.Parameter(torch.ones(6))
        nn.init.normal_(self.drawn)
        self.part = nn.Parameter(torch.zeros(6))
        with torch.no_grad():
            self.part[:3].fill_(1)

    def forward(self, x):
        x = self.fc(x) * self.ones + self.zeros
        return x * self.full + self.constant + x * self.scaled + self.drawn + self.part
