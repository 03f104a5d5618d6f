"""The networks of experiments/peers.lua in PyTorch, by their name in the column "model"."""
from collections import namedtuple

# build(torch.nn); shape of one sample; tokens: samples are indices below it; labels of a sample
Network = namedtuple("Network", "build input classes tokens labels", defaults=(None, 1))


def convnet(nn, width):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 2 * width, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(2 * width * 28 * 28, 10))


def mnist_cnn(nn):
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten(),
                         nn.Linear(16 * 14 * 14, 10))


def mlp(nn):
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def vgg16(nn):
    layers, channels = [], 3
    for width, depth in (64, 2), (128, 2), (256, 3), (512, 3), (512, 3):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(nn.Sequential(*layers), nn.Flatten(),
                         nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(),
                         nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000))


def resnet18(nn):
    def convolution(before, channels, kernel, stride):
        return nn.Conv2d(before, channels, kernel, stride, kernel // 2, bias=False)

    class Block(nn.Module):
        def __init__(self, before, channels, stride):
            super().__init__()
            self.conv1, self.bn1 = convolution(before, channels, 3, stride), nn.BatchNorm2d(channels)
            self.conv2, self.bn2 = convolution(channels, channels, 3, 1), nn.BatchNorm2d(channels)
            self.relu, self.downsample = nn.ReLU(inplace=True), None
            if stride > 1 or before != channels:
                self.downsample = nn.Sequential(convolution(before, channels, 1, stride), nn.BatchNorm2d(channels))

        def forward(self, x):
            shortcut = x if self.downsample is None else self.downsample(x)
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            y += shortcut
            return self.relu(y)

    class ResNet18(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1, self.relu = convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
            self.maxpool, self.avgpool = nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1)
            for i, (a, b) in enumerate(((64, 64), (64, 128), (128, 256), (256, 512)), 1):
                setattr(self, f"layer{i}", nn.Sequential(Block(a, b, 1 + (a != b)), Block(b, b, 1)))
            self.fc = nn.Linear(512, 1000)

        def forward(self, x):
            x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(self.avgpool(x).flatten(1))
    return ResNet18()


def lstm(nn):
    class TextClassifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.fc = nn.Embedding(1000, 256), nn.Linear(256, 2)
            self.lstm = nn.LSTM(256, 256, num_layers=2, batch_first=True)

        def forward(self, x):
            return self.fc(self.lstm(self.embedding(x))[0][:, -1])
    return TextClassifier()


def gpt(nn, channels=128, heads=4, steps=128, vocabulary=512, layers=4):
    import torch  # what torch.nn does not have
    fused = getattr(nn.functional, "scaled_dot_product_attention", None)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
            self.register_buffer("later", torch.ones(steps, steps, dtype=torch.bool).triu(1), persistent=False)

        def forward(self, x):
            q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in self.c_attn(x).split(channels, 2))
            if fused:
                y = fused(q, k, v, is_causal=True)
            else:
                scores = (q @ k.transpose(2, 3)) * (channels // heads) ** -0.5
                y = scores.masked_fill(self.later, -torch.inf).softmax(3) @ v
            return self.c_proj(y.transpose(1, 2).flatten(2))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(channels), Attention(), nn.LayerNorm(channels)
            self.mlp = nn.ModuleDict({"c_fc": nn.Linear(channels, 4 * channels), "gelu": nn.GELU(),
                                      "c_proj": nn.Linear(4 * channels, channels)})

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp.c_proj(self.mlp.gelu(self.mlp.c_fc(self.ln_2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.ModuleDict({
                "wte": nn.Embedding(vocabulary, channels), "wpe": nn.Embedding(steps, channels),
                "h": nn.ModuleList(Block() for _ in range(layers)), "ln_f": nn.LayerNorm(channels)})
            self.lm_head = nn.Linear(channels, vocabulary, bias=False)
            self.lm_head.weight = self.transformer.wte.weight

        def forward(self, tokens):
            x = self.transformer.wte(tokens) + self.transformer.wpe.weight
            for block in self.transformer.h:
                x = block(x)
            return self.lm_head(self.transformer.ln_f(x)).flatten(0, 1)
    return GPT()


def llama(nn, channels=384, hidden=1024, heads=6, kv_heads=2, vocabulary=512, layers=6):
    """Hugging Face's LlamaForCausalLM, by its names; for PyTorch 2.5 or later"""
    import torch
    width = channels // heads

    def linear(before, after):
        return nn.Linear(before, after, bias=False)

    def turned(x):
        frequency = 1 / 10000 ** (torch.arange(0, width, 2, device=x.device).float() / width)
        angle = torch.arange(x.shape[2], device=x.device).float()[:, None] * frequency
        cosine, sine = (torch.cat((f(angle), f(angle)), 1).to(x.dtype) for f in (torch.cos, torch.sin))
        low, high = x.chunk(2, 3)
        return x * cosine + torch.cat((-high, low), 3) * sine

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj = linear(channels, channels), linear(channels, kv_heads * width)
            self.v_proj, self.o_proj = linear(channels, kv_heads * width), linear(channels, channels)

        def forward(self, x):
            q, k, v = (part(x).unflatten(2, (-1, width)).transpose(1, 2)
                       for part in (self.q_proj, self.k_proj, self.v_proj))
            y = nn.functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
            return self.o_proj(y.transpose(1, 2).flatten(2))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = linear(channels, hidden), linear(channels, hidden)
            self.down_proj = linear(hidden, channels)

        def forward(self, x):
            return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn, self.mlp = Attention(), MLP()
            self.input_layernorm = nn.RMSNorm(channels, 1e-6)
            self.post_attention_layernorm = nn.RMSNorm(channels, 1e-6)

        def forward(self, x):
            x = x + self.self_attn(self.input_layernorm(x))
            return x + self.mlp(self.post_attention_layernorm(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(vocabulary, channels)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = nn.RMSNorm(channels, 1e-6)

        def forward(self, tokens):
            x = self.embed_tokens(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.norm(x)

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.lm_head = Model(), linear(channels, vocabulary)

        def forward(self, tokens):
            return self.lm_head(self.model(tokens)).flatten(0, 1)
    return Llama()


def vit(nn, channels=192, heads=3, hidden=768, patch=8, side=64, layers=6, classes=100):
    """Hugging Face's ViTForImageClassification, by its names; for PyTorch 2.0 or later"""
    import torch

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(channels, channels) for _ in range(4))

        def forward(self, x):
            q, k, v = (part(x).unflatten(2, (heads, -1)).transpose(1, 2)
                       for part in (self.q_proj, self.k_proj, self.v_proj))
            return self.o_proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(channels, hidden), nn.Linear(hidden, channels)

        def forward(self, x):
            return self.fc2(nn.functional.gelu(self.fc1(x)))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = Attention(), MLP()
            self.layernorm_before, self.layernorm_after = (nn.LayerNorm(channels, 1e-12) for _ in range(2))

        def forward(self, x):
            x = x + self.attention(self.layernorm_before(x))
            return x + self.mlp(self.layernorm_after(x))

    class Embeddings(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls_token = nn.Parameter(torch.zeros(1, 1, channels))
            self.position_embeddings = nn.Parameter(torch.zeros(1, 1 + (side // patch) ** 2, channels))
            self.patch_embeddings = nn.ModuleDict({"projection": nn.Conv2d(3, channels, patch, patch)})

        def forward(self, x):
            x = self.patch_embeddings.projection(x).flatten(2).transpose(1, 2)
            return torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.position_embeddings

    class ViT(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = nn.ModuleDict({"embeddings": Embeddings(), "layers": nn.ModuleList(Layer() for _ in range(layers)),
                                      "layernorm": nn.LayerNorm(channels, 1e-12)})
            self.classifier = nn.Linear(channels, classes)

        def forward(self, x):
            x = self.vit.embeddings(x)
            for layer in self.vit.layers:
                x = layer(x)
            return self.classifier(self.vit.layernorm(x)[:, 0])
    return ViT()


NETWORKS = {
    "simple_convnet": Network(lambda nn: convnet(nn, 64), (3, 32, 32), 10),
    "smaller_convnet": Network(lambda nn: convnet(nn, 32), (3, 32, 32), 10),
    "mnist_cnn": Network(mnist_cnn, (1, 28, 28), 10),
    "mlp": Network(mlp, (784,), 10),
    "vgg16": Network(vgg16, (3, 224, 224), 1000),
    "resnet18": Network(resnet18, (3, 64, 64), 1000),
    "lstm": Network(lstm, (64,), 2, 1000),
    "gpt": Network(gpt, (128,), 512, 512, 128),
    "llama": Network(llama, (128,), 512, 512, 128),
    "vit": Network(vit, (3, 64, 64), 100),
}
