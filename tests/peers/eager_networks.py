"""Networks of mt.models and of experiments/ in PyTorch, for eager_cases.py: line by line as lua/memtide/net/models.lua has
them, with Python's variables where Lua has local ones. Llama alone is transformers', which must be installed for it."""
import math

import torch
from torch import nn
from torch.nn import functional as F


def conv(before, after, kernel, stride=1):
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)


class LeNet(nn.Module):
    def __init__(self, size=28):
        super().__init__()
        side = ((size + 4 - 4) // 2 - 4) // 2
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * side * side, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def convnet(width=64):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 2 * width, 3), nn.ReLU(), nn.Flatten(),
                         nn.Linear(2 * width * 28 * 28, 10))


def simple_cnn():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten(),
                         nn.Linear(16 * 14 * 14, 10))


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def vgg_features(blocks):
    features, channels = [], 3
    for width, depth in zip((64, 128, 256, 512, 512), blocks):
        for _ in range(depth):
            features += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        features.append(nn.MaxPool2d(2, 2))
    return features


def vgg_classifier():
    return [nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 4096),
            nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000)]


class VGG(nn.Sequential):
    def __init__(self, *blocks):
        super().__init__()
        self.features, self.avgpool = nn.Sequential(*vgg_features(blocks)), nn.AdaptiveAvgPool2d(7)
        self.flatten, self.classifier = nn.Flatten(), nn.Sequential(*vgg_classifier())


def flat_vgg16():
    """experiments/vgg16_memory.lua's"""
    return nn.Sequential(*vgg_features((2, 2, 3, 3, 3)), nn.AdaptiveAvgPool2d(7), nn.Flatten(), *vgg_classifier())


def downsample(before, after, stride):
    if stride == 1 and before == after:
        return nn.Identity()
    return nn.Sequential(conv(before, after, 1, stride), nn.BatchNorm2d(after))


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, before, planes, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(before, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv(planes, planes, 3), nn.BatchNorm2d(planes)
        self.downsample = downsample(before, planes, stride)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.downsample(x), inplace=True)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, before, planes, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(before, planes, 1), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv(planes, planes, 3, stride), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = conv(planes, 4 * planes, 1), nn.BatchNorm2d(4 * planes)
        self.downsample = downsample(before, 4 * planes, stride)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.downsample(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, block, counts, num_classes=1000):
        super().__init__()
        self.conv1, self.bn1, channels = conv(3, 64, 7, 2), nn.BatchNorm2d(64), 64
        for stage, count in enumerate(counts, 1):
            layers = []
            for i in range(count):
                layers.append(block(channels, 32 << stage, 2 if i == 0 and stage > 1 else 1))
                channels = (32 << stage) * block.expansion
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage in 1, 2, 3, 4:
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet18(**options):
    return ResNet(BasicBlock, (2, 2, 2, 2), **options)


def frozen_resnet18(parts):
    model = resnet18(num_classes=10)
    for name in ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4")[:parts]:
        getattr(model, name).requires_grad_(False)
    return model


def resnet50():
    return ResNet(Bottleneck, (3, 4, 6, 3))


class BasicConv(nn.Sequential):
    def __init__(self, before, after, kernel, stride=1):
        super().__init__()
        self.conv, self.bn = conv(before, after, kernel, stride), nn.BatchNorm2d(after, eps=0.001)
        self.relu = nn.ReLU(inplace=True)


class Inception(nn.Module):
    def __init__(self, before, one, three_in, three, five_in, five, pool):
        super().__init__()
        self.branch1 = BasicConv(before, one, 1)
        self.branch2 = nn.Sequential(BasicConv(before, three_in, 1), BasicConv(three_in, three, 3))
        self.branch3 = nn.Sequential(BasicConv(before, five_in, 1), BasicConv(five_in, five, 3))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), BasicConv(before, pool, 1))

    def forward(self, x):
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class InceptionAux(nn.Sequential):
    def __init__(self, before):
        super().__init__()
        self.pool, self.conv, self.flatten = nn.AdaptiveAvgPool2d(4), BasicConv(before, 128, 1), nn.Flatten()
        self.fc1, self.relu, self.dropout = nn.Linear(2048, 1024), nn.ReLU(inplace=True), nn.Dropout(0.7)
        self.fc2 = nn.Linear(1024, 1000)


INCEPTION = {  # name: sizes; the window of the pooling before the block; the head after it
    "inception3a": ((192, 64, 96, 128, 16, 32, 32), 3, None), "inception3b": ((256, 128, 128, 192, 32, 96, 64), 0, None),
    "inception4a": ((480, 192, 96, 208, 16, 48, 64), 3, "aux1"), "inception4b": ((512, 160, 112, 224, 24, 64, 64), 0, None),
    "inception4c": ((512, 128, 128, 256, 24, 64, 64), 0, None), "inception4d": ((512, 112, 144, 288, 32, 64, 64), 0, "aux2"),
    "inception4e": ((528, 256, 160, 320, 32, 128, 128), 0, None),
    "inception5a": ((832, 256, 160, 320, 32, 128, 128), 2, None), "inception5b": ((832, 384, 192, 384, 48, 128, 128), 0, None)}


class GoogLeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = BasicConv(3, 64, 7, 2), BasicConv(64, 64, 1), BasicConv(64, 192, 3)
        for name, (sizes, _, _) in INCEPTION.items():
            self.add_module(name, Inception(*sizes))
        self.aux1, self.aux2, self.dropout = InceptionAux(512), InceptionAux(528), nn.Dropout(0.2)
        self.fc = nn.Linear(1024, 1000)

    def forward(self, x):
        heads = []
        x = F.max_pool2d(self.conv1(x), 3, stride=2, ceil_mode=True)
        x = self.conv3(self.conv2(x))
        for name, (_, pool, aux) in INCEPTION.items():
            if pool:
                x = F.max_pool2d(x, pool, stride=2, ceil_mode=True)
            x = getattr(self, name)(x)
            if aux:
                heads.insert(0, getattr(self, aux)(x))
        return self.fc(self.dropout(x.mean((2, 3)))), *heads


class PositionEmbedding(nn.Module):
    def __init__(self, num_positions, embedding_dim):
        super().__init__()
        self.wpe = nn.Embedding(num_positions, embedding_dim)

    def forward(self, x):
        return x + self.wpe(torch.arange(x.shape[1], device=x.device))


class CausalSelfAttention(nn.Module):
    """nanoGPT's"""

    def __init__(self, n_embd, n_head, dropout=0., bias=True):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd, bias=bias), nn.Linear(n_embd, n_embd, bias=bias)
        self.resid_dropout = nn.Dropout(dropout)
        self.n_head, self.n_embd, self.dropout = n_head, n_embd, dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class GPTBlock(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(width), CausalSelfAttention(width, heads, dropout), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, steps, words, layers, heads, width, dropout):
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(words, width), PositionEmbedding(steps, width), nn.Dropout(dropout)
        self.h = nn.ModuleList(GPTBlock(width, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, x):
        x = self.drop(self.wpe(self.wte(x)))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class GPT(nn.Module):
    def __init__(self, steps, words, layers, heads, width, dropout=0.):
        super().__init__()
        self.transformer = Transformer(steps, words, layers, heads, width, dropout)
        self.lm_head = nn.Linear(width, words, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, x):
        return self.lm_head(self.transformer(x)).flatten(0, 1)


# ---- Hugging Face's Llama

def llama(words, width, hidden, layers, heads, kv_heads, checkpointing=None):
    """transformers' own. It gives its logits as mt.models.Llama does; the loss is the loop's. checkpointing: what
    gradient_checkpointing_enable is called with"""
    from transformers import LlamaConfig, LlamaForCausalLM

    class Llama(LlamaForCausalLM):
        def forward(self, x):
            return super().forward(x).logits.flatten(0, 1)

    model = Llama(LlamaConfig(vocab_size=words, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
                              num_attention_heads=heads, num_key_value_heads=kv_heads, rms_norm_eps=1e-6, use_cache=False,
                              attn_implementation="sdpa"))
    if checkpointing is not None:
        model.gradient_checkpointing_enable(checkpointing)
    return model.train()


def lora(model, bits16=False, bits=16, nested=True, **options):
    """A model of transformers with PEFT's adapters. bits16: the base in bf16, the adapters in fp32; bits: 4 or 8, the base quantised
    by bitsandbytes"""
    import peft
    if bits < 16:
        import fakebnb
        model = fakebnb.quantised(model.bfloat16(), bits, nested)
        model = model if bits16 else model.float()
    model = model.bfloat16() if bits16 else model
    return peft.get_peft_model(model, peft.LoraConfig(**options)).get_base_model().train()


# ---- DCGAN

def pyramid(size):
    side, doublings = size, 0
    while side > 7 and side % 2 == 0:
        side, doublings = side // 2, doublings + 1
    return side, doublings


class Main(nn.Sequential):
    def __init__(self, layers):
        super().__init__()
        self.main = nn.Sequential(*layers)


def generator(latent=100, features=64, channels=3, size=64):
    side, doublings = pyramid(size)
    width = features << (doublings - 1)
    layers = [nn.ConvTranspose2d(latent, width, side, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    for _ in range(1, doublings):
        layers += [nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(width // 2),
                   nn.ReLU(inplace=True)]
        width //= 2
    return Main(layers + [nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1, bias=False), nn.Tanh()])


def discriminator(features=64, channels=3, size=64):
    side, halvings = pyramid(size)
    width = features
    layers = [nn.Conv2d(channels, width, 4, stride=2, padding=1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for _ in range(1, halvings):
        layers += [nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width),
                   nn.LeakyReLU(0.2, inplace=True)]
        width *= 2
    return Main(layers + [nn.Conv2d(width, 1, side, bias=False), nn.Flatten()])


# ---- others

def double_conv(before, after):
    return nn.Sequential(conv(before, after, 3), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
                         conv(after, after, 3), nn.BatchNorm2d(after), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, features=64, depth=4):
        super().__init__()
        widths = [features << level for level in range(1, depth + 1)]
        self.inc = double_conv(3, features)
        self.down = nn.ModuleList(double_conv(width // 2, width) for width in widths)
        # in the order of their use, as a graph without `order` has its parameters
        self.rise = nn.ModuleList(nn.ModuleList([nn.ConvTranspose2d(width, width // 2, 2, stride=2),
                                                 double_conv(width, width // 2)]) for width in reversed(widths))
        self.outc = nn.Conv2d(features, 1, 1)

    def forward(self, x):
        kept = [self.inc(x)]
        for down in self.down:
            kept.append(down(F.max_pool2d(kept[-1], 2)))
        x = kept[-1]
        for level, (up, merge) in zip(reversed(range(len(self.down))), self.rise):
            x = merge(torch.cat([kept[level], up(x)], 1))
        return self.outc(x)


class VAE(nn.Module):
    def __init__(self, latent=20):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 400), nn.Linear(400, latent), nn.Linear(400, latent)
        self.fc3, self.fc4 = nn.Linear(latent, 400), nn.Linear(400, 784)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        std = (0.5 * logvar).exp()
        z = mu + torch.randn_like(std) * std
        return self.fc4(F.relu(self.fc3(z))), 1 + logvar - mu ** 2 - logvar.exp()


class ViT(nn.Module):
    def __init__(self, dim=192, depth=6, heads=3, patch=8):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, dim, patch, stride=patch)
        self.positions = PositionEmbedding((64 // patch) ** 2, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, 100)

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = self.encoder(self.positions(x))
        return self.head(x.mean(1))


class Variables(nn.Module):
    """Values that variables hold longer than something reads them: to the end of the function, past the end of a loop's
    body, while `return f(x)` runs f, in a list; and names that are bound again"""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(37, 53), nn.Linear(53, 41), nn.Linear(41, 11)

    def forward(self, x):
        def scaled(x):
            twice = x * 2
            x = twice + 1
            return x

        def ended(x):
            half = x * 0.5
            shifted = half + 3
            return self.last(shifted)

        h = self.first(x)
        h = F.relu(h)
        y = self.second(h)
        kept = []
        for i in range(3):
            wide = y + 1
            kept.append(wide)
            y = scaled(wide * 3)
        y = torch.tanh(scaled(y))
        return ended(y)


class Attentive(nn.Module):
    """Attention of four heads, with two of keys and values"""

    def __init__(self, features, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(features, heads * width) for heads in (4, 2, 2))
        self.width = width

    def forward(self, x):
        def heads(x):
            return x.view(*x.shape[:2], -1, self.width).transpose(1, 2)

        q, k, v = self.q(x), self.k(x), self.v(x)
        y = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).contiguous().view(*x.shape[:2], -1)


class Masked(nn.Module):
    """Attention of four heads by the listing of docs/pytorch.md. bias: its shape, an nn.Parameter, or what forward makes of one"""

    def __init__(self, features, width, keys=4, bias=(), frozen=False, turned=False, **how):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(features, heads * width) for heads in (4, keys, keys))
        self.bias = nn.ParameterList([nn.Parameter(torch.zeros(bias), requires_grad=not frozen)] if bias else [])
        self.width, self.turned = width, turned
        self.is_causal, self.window, self.softcap, self.dropout = (
            how.get(name, 0) for name in ("is_causal", "window", "softcap", "dropout_p"))

    def mask(self, q, k, bias):
        T, S = q.shape[1], k.shape[1]
        if not self.is_causal or not (self.window or self.softcap or bias is not None):
            return bias
        seen = torch.ones(T, S, dtype=torch.bool, device=q.device).tril()
        if self.window:
            seen = seen.triu(1 - self.window)
        if bias is None and not self.softcap:
            return seen
        if bias is None:
            bias = q.new_zeros(T, S)
        return bias.masked_fill(~seen, -math.inf)

    def capped(self, q, k, v, mask):
        def repeat_kv(x):
            N, heads, T, width = x.shape
            groups = q.shape[1] // heads
            return x if groups == 1 else x[:, :, None].expand(N, heads, groups, T, width).reshape(N, heads * groups, T, width)

        k, v = repeat_kv(k), repeat_kv(v)
        weights = torch.matmul(q, k.transpose(2, 3)) * self.width ** -0.5
        weights = weights / self.softcap
        weights = torch.tanh(weights)
        weights = weights * self.softcap
        if mask is not None:
            weights = weights + mask
        weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        y = torch.matmul(weights, v)
        return y.transpose(1, 2).contiguous()

    def attention(self, q, k, v, bias):
        def heads(x):
            return x.view(*x.shape[:2], -1, self.width).transpose(1, 2)

        mask = self.mask(q, k, bias)
        if self.softcap:
            y = self.capped(heads(q), heads(k), heads(v), mask)
        else:
            y = F.scaled_dot_product_attention(
                heads(q), heads(k), heads(v), attn_mask=mask, dropout_p=self.dropout if self.training else 0,
                is_causal=bool(self.is_causal) and mask is None, enable_gqa=k.shape[2] != q.shape[2])
            y = y.transpose(1, 2).contiguous()
        return y.view(*y.shape[:2], -1)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        bias = self.bias[0] if len(self.bias) else None
        if self.turned:
            bias = bias.transpose(0, 2)
        return self.attention(q, k, v, bias)


class TwoProducts(nn.Module):
    """A value that two einsum products read: its gradient is the sum of theirs"""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(19, 24)), nn.Parameter(torch.zeros(19, 24))
        self.c = nn.Parameter(torch.zeros(24, 24))

    def forward(self, x):
        h = torch.tanh(torch.einsum("btd,ed->bte", x, self.c))
        return torch.einsum("btd,od->bto", h, self.a) * torch.einsum("btd,od->bto", h, self.b)


class Windows(nn.Module):
    """Attention as in Swin V2: to directions, with a learned scale and a bias by distance; then every second of the steps,
    turned, through a product with a weight that is computed."""

    def __init__(self, width=24, heads=3):
        super().__init__()
        self.heads, self.width = heads, width
        self.scale = nn.Parameter(torch.zeros(heads, 1, 1))
        self.table = nn.Parameter(torch.zeros(15, heads))
        self.mix = nn.Parameter(torch.zeros(13, width))
        self.register_buffer("distance", (torch.arange(8)[:, None] - torch.arange(8) + 7).view(-1))
        self.all = nn.Linear(width, 3 * width)

    def forward(self, x):
        every = self.all(x)
        q, k, v = (every.narrow(2, i * self.width, self.width).view(-1, 8, self.heads, 8).transpose(1, 2) for i in range(3))
        near = torch.matmul(F.normalize(q, dim=-1), F.normalize(k, dim=-1).transpose(-2, -1))
        near = near * self.scale.clamp(max=0.3).exp()
        near = near + self.table[self.distance].view(8, 8, self.heads).permute(2, 0, 1)
        y = torch.matmul(near.softmax(-1), v).transpose(1, 2).reshape(-1, 8, self.width)
        return F.linear(y.roll(1, 1)[:, ::2], 2 * self.mix)


class ScaledRows(nn.Module):
    """A parameter of its own before modules, which move first; Linear of four dimensions"""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(17))
        self.first, self.last = nn.Linear(13, 17), nn.Linear(17, 11)

    def forward(self, x):
        return self.last(self.first(x) * self.scale)


class TwoInputs(nn.Module):
    """Tokens and images"""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(97, 24)
        self.conv = nn.Conv2d(3, 16, 3)
        self.fc = nn.Linear(40, 11)

    def forward(self, ids, pixels):
        words = self.embed(ids).mean(1)
        image = nn.functional.relu(self.conv(pixels)).mean((2, 3))
        return self.fc(torch.cat((words, image), 1))
