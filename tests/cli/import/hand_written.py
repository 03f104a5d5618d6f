"""Transformers as people write them by hand, which tests/cli/import.sh and tests/peers/import.py import: a GPT with its layers in an
nn.ModuleDict, a ViT, and a Llama with rotary positions of real numbers and grouped keys"""
import math
import torch
from torch import nn
import torch.nn.functional as F


class LayerNorm(nn.Module):
    """With or without a bias"""

    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    """how: "flash", or whose mask hides later steps: "buffer", "made" in forward, "booleans" in a buffer"""

    def __init__(self, width, heads, context, dropout, how):
        super().__init__()
        self.how, self.heads, self.dropout = how, heads, dropout
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.attn_dropout, self.resid_dropout = nn.Dropout(dropout), nn.Dropout(dropout)
        if how == "buffer":
            self.register_buffer("bias", torch.tril(torch.ones(context, context)).view(1, 1, context, context))
        elif how == "booleans":
            self.register_buffer("hidden", torch.triu(torch.ones(context, context, dtype=torch.bool), 1), persistent=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        if self.how == "flash":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=self.dropout if self.training else 0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            if self.how == "buffer":
                att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            elif self.how == "made":
                att = att.masked_fill(torch.tril(torch.ones(T, T, device=x.device)) == 0, float("-inf"))
            elif self.how == "added":
                att = att + torch.full((T, T), float("-inf"), device=x.device).triu(1)
            else:
                att = att.masked_fill(self.hidden[:T, :T], float("-inf"))
            att = F.softmax(att, dim=-1)
            att = self.attn_dropout(att)
            y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        y = self.resid_dropout(self.c_proj(y))
        return y


class MLP(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.c_fc(x)
        x = self.gelu(x)
        x = self.c_proj(x)
        x = self.dropout(x)
        return x


class Block(nn.Module):
    def __init__(self, width, heads, context, dropout, how):
        super().__init__()
        self.ln_1 = LayerNorm(width, bias=False)
        self.attn = CausalSelfAttention(width, heads, context, dropout, how)
        self.ln_2 = LayerNorm(width, bias=True)
        self.mlp = MLP(width, dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    """nanoGPT's structure. tied: the weight of the head is that of the words"""

    def __init__(self, words=50, width=32, heads=4, depth=3, context=16, dropout=0.1, how="flash", tied=True, last=False):
        super().__init__()
        self.last = last
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(words, width),
            wpe=nn.Embedding(context, width),
            drop=nn.Dropout(dropout),
            h=nn.ModuleList([Block(width, heads, context, dropout, how) for _ in range(depth)]),
            ln_f=LayerNorm(width, bias=False),
        ))
        self.lm_head = nn.Linear(width, words, bias=False)
        if tied:
            self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        tok_emb = self.transformer.wte(idx)
        pos_emb = self.transformer.wpe(pos)
        x = self.transformer.drop(tok_emb + pos_emb)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        logits = self.lm_head(x[:, [-1], :] if self.last else x)
        return logits, None


class Decoder(nn.Module):
    """A module that has the words' weight in it, which another one's head takes"""

    def __init__(self, words, width, positions):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("positions", torch.arange(positions).expand(1, -1), persistent=False)
        self.wpe = nn.Embedding(positions, width)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + self.wpe(self.positions[:, :ids.shape[1]])
        return self.norm(x)


class Inside(nn.Module):
    def __init__(self, words=20, width=8, context=6, how="head"):
        super().__init__()
        self.decoder = Decoder(words, width, context)
        self.head = nn.Linear(width, words)
        self.other = nn.Embedding(words, width)
        self.how = how
        if how == "head":
            self.head.weight = self.decoder.embed.weight
        elif how == "embedding":
            self.other.weight = self.decoder.embed.weight

    def forward(self, ids):
        x = self.decoder(ids)
        return self.head(x + self.other(ids) if self.how == "embedding" else x)


class ViTAttention(nn.Module):
    def __init__(self, width, heads, how):
        super().__init__()
        self.heads, self.how = heads, how
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        if self.how == "flash":
            q, k, v = qkv.unbind(0)
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            q, k, v = qkv[0], qkv[1], qkv[2]
            attn = (q @ k.transpose(-2, -1)) * self.scale
            attn = attn.softmax(dim=-1)
            x = attn @ v
        x = x.transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class ViTBlock(nn.Module):
    def __init__(self, width, heads, how):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = ViTAttention(width, heads, how)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class ViT(nn.Module):
    """pool: "token" (a class token, which is read), "mean", "last" """

    def __init__(self, size=16, patch=4, width=32, heads=4, depth=2, classes=5, how="flash", pool="token"):
        super().__init__()
        self.pool = pool
        self.patch = nn.Conv2d(3, width, patch, stride=patch)
        if pool == "token":
            self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, (size // patch) ** 2 + (pool == "token"), width) * 0.02)
        self.blocks = nn.ModuleList([ViTBlock(width, heads, how) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        if self.pool == "token":
            x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.pos_embed
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x[:, 0] if self.pool == "token" else x[:, -1] if self.pool == "last" else x.mean(dim=1))


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float()).type_as(x)
        return output * self.weight


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def repeat_kv(x, n):
    B, K, T, D = x.shape
    return x[:, :, None, :, :].expand(B, K, n, T, D).reshape(B, K * n, T, D)


class LlamaAttention(nn.Module):
    """how: keys of fewer heads than queries go to all by "grouped" attention, are "repeated" by a view that is expanded, or "interleaved" """

    def __init__(self, width, heads, keys, how):
        super().__init__()
        self.heads, self.keys, self.how = heads, keys, how
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width // heads * keys, bias=False)
        self.wv = nn.Linear(width, width // heads * keys, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q = self.wq(x).view(B, T, self.heads, -1).transpose(1, 2)
        k = self.wk(x).view(B, T, self.keys, -1).transpose(1, 2)
        v = self.wv(x).view(B, T, self.keys, -1).transpose(1, 2)
        q = (q * cos) + (rotate_half(q) * sin)
        k = (k * cos) + (rotate_half(k) * sin)
        n = self.heads // self.keys
        if self.how == "repeated":
            k, v = repeat_kv(k, n), repeat_kv(v, n)
        elif self.how == "interleaved":
            k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.how == "grouped")
        y = y.transpose(1, 2).reshape(B, T, C)
        return self.wo(y)


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(*pair, bias=False) for pair in ((width, inner), (inner, width), (width, inner)))

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, keys, how):
        super().__init__()
        self.attention_norm, self.ffn_norm = RMSNorm(width), RMSNorm(width)
        self.attention = LlamaAttention(width, heads, keys, how)
        self.feed_forward = FeedForward(width, 3 * width)

    def forward(self, x, cos, sin):
        h = x + self.attention(self.attention_norm(x), cos, sin)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    def __init__(self, words=50, width=32, heads=4, keys=2, depth=2, context=16, how="grouped"):
        super().__init__()
        self.tok_embeddings = nn.Embedding(words, width)
        self.layers = nn.ModuleList([LlamaBlock(width, heads, keys, how) for _ in range(depth)])
        self.norm = RMSNorm(width)
        self.output = nn.Linear(width, words, bias=False)
        each = torch.arange(0, width // heads, 2).float() / (width // heads)
        angles = torch.outer(torch.arange(context).float(), 10000.0 ** -each)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens):
        T = tokens.shape[1]
        h = self.tok_embeddings(tokens)
        cos, sin = self.cos[:T], self.sin[:T]
        for layer in self.layers:
            h = layer(h, cos, sin)
        return self.output(self.norm(h))


class Words(nn.Module):
    """Whose logits are products with the words' weight itself"""

    def __init__(self, words=20, width=8):
        super().__init__()
        self.embed = nn.Embedding(words, width)

    def forward(self, ids):
        return F.linear(self.embed(ids), self.embed.weight)
