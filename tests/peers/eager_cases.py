"""The cases of eager.py: each is one network twice, as a script for memtide and as PyTorch's modules."""
import random
from dataclasses import dataclass, field, replace

import torch
import torch.utils.checkpoint
from torch import nn

import eager_networks as networks
import fuzz
import fuzz_networks
from fuzz_networks import Spec, lua


@dataclass
class Written:
    """A network that both write out: an expression in Lua, and a function that makes the module"""
    lua: str
    make: object


@dataclass
class Experiment:
    """A network of experiments/: what `memtide dump` is given after the script, and a function that makes the module"""
    name: str
    options: list
    make: object


class Apart(dict):
    """Makes each place of a layer a layer of its own, as the script says"""

    def __contains__(self, _):
        return False


@dataclass
class Case:
    name: str
    model: object                 # Spec, Written, or Experiment
    input: object                 # shape of one sample; {name: shape} of several inputs, in the order of forward()
    batch: int
    loss: list                    # [(factor, Spec), ...], one for each output
    optimizer: Spec
    tokens: object = False        # the input is of indices, or of "bytes"; of several inputs the names of those that are indices
    precision: str = "fp32"       # or amp_bf16, amp_fp16
    accumulate: int = 1
    mode: str = "train"
    pytorch: dict = field(default_factory=dict)  # settings.pytorch
    settings: dict = field(default_factory=dict)  # others of memtide alone
    known: str = ""               # why memtide's list is another one
    world: int = 1                # ranks
    rank: int = 0                 # which of them
    newest_only: bool = False     # memtide does not predict it for older versions of PyTorch

    def script(self):
        """The experiment of this case, in Lua"""
        model = self.model.lua if isinstance(self.model, Written) else fuzz_networks.script(self.model, {})
        loss = " + ".join(("" if factor == 1 else f"{factor} * ") + fuzz_networks.script(term, {})
                          for factor, term in self.loss)
        optimizer = fuzz_networks.script(self.optimizer, {}).replace("nn.", "optim.", 1)
        values = dict(batch=self.batch, precision=self.precision, accumulate=self.accumulate, mode=self.mode,
                      **({"world": self.world} if self.world > 1 else {}), **self.settings)
        if self.pytorch:
            values["pytorch"] = self.pytorch
        settings = ", ".join(f"{key} = {lua(value)}" for key, value in values.items())
        return (f'local mt = require "memtide"\nlocal nn, optim, models = mt.nn, mt.optim, mt.models\n'
                f'return mt.experiment{{\n  name = "{self.name}", model_name = "{self.name}",\n  model = {model},\n'
                f'  input = {lua(self.input)}, loss = {loss},\n  optimizer = {optimizer}, {settings},\n}}\n')

    def inputs(self):
        """(shape, are these indices?) of each input"""
        if isinstance(self.input, dict):
            return [(shape, torch.int64 if name in (self.tokens or ()) else torch.float32) for name, shape in self.input.items()]
        return [(self.input, torch.uint8 if self.tokens == "bytes" else torch.int64 if self.tokens else torch.float32)]

    def module(self):
        if not isinstance(self.model, Spec):
            return self.model.make()
        reentrant = self.pytorch.get("use_reentrant", False)
        return fuzz_networks.build(self.model, Apart(), {**OWN, "Checkpoint": lambda body: Checkpoint(body, reentrant)})

    def criteria(self):
        """[(factor, module), ...]"""
        made = []
        for factor, loss in self.loss:
            options = {key: torch.tensor(value) if "weight" in key else value for key, value in loss.options.items()}
            made.append((factor, IdentityLoss(**options) if loss.kind == "IdentityLoss"
                         else getattr(nn, loss.kind)(**options)))
        return made

    def of_classes(self):
        return self.loss[0][1].kind in ("CrossEntropyLoss", "NLLLoss")


# ---- PyTorch's form of memtide's layers, where fuzz_networks.py has another one that computes the same

class FromBytes(nn.Module):
    def forward(self, x):
        return x.float().div_(255).sub_(0.5).div_(0.25)


class IdentityLoss(nn.Module):
    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, output, _):
        return getattr(output, self.reduction)()


class Checkpoint(nn.Module):
    def __init__(self, body, use_reentrant):
        super().__init__()
        self.body, self.use_reentrant = body, use_reentrant

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=self.use_reentrant)


OWN = {cls.__name__: cls for cls in (networks.PositionEmbedding, networks.CausalSelfAttention)}


# ---- shorthand

def layer(kind, *args, **options):
    return Spec(kind, list(args), options)


def chain(*children):
    return Spec("Sequential", children=list(children))


def loss(kind="CrossEntropyLoss", **options):
    return [(1, Spec(kind, [], options))]


ADAM = layer("Adam", lr=1e-3)
CASES = {}


def case(name, model, input, batch, loss_of=None, optimizer=ADAM, **rest):
    assert name not in CASES, name
    CASES[name] = Case(name, model, input, batch, loss_of or loss(), optimizer, **rest)


# ---- single layers, losses and optimizers; sizes are unlike each other, so that none is taken for another

def mlp():
    return chain(layer("Linear", 784, 300), layer("ReLU"), layer("Linear", 300, 10))


def convnet(width=64):
    return chain(layer("Conv2d", 3, width, 3), layer("ReLU"), layer("Conv2d", width, 2 * width, 3), layer("ReLU"),
                 layer("Flatten"), layer("Linear", 2 * width * 28 * 28, 10))


def normalised():
    return chain(layer("Conv2d", 3, 17, 3, padding=1), layer("BatchNorm2d", 17), layer("ReLU"), layer("MaxPool2d", 2),
                 layer("Conv2d", 17, 23, 3, bias=False), layer("BatchNorm2d", 23), layer("ReLU", inplace=True),
                 layer("AdaptiveAvgPool2d", 1), layer("Flatten"), layer("Linear", 23, 10))


case("mlp", mlp(), [784], 64)
case("convnet", convnet(), [3, 32, 32], 64)
case("normalised", normalised(), [3, 32, 32], 19)

for kind, options in dict(
        ReLU={}, LeakyReLU={}, Sigmoid={}, Tanh={}, SiLU={}, ELU={}, CELU=dict(alpha=0.5), Softplus={}, Hardswish={}, ReLU6={}, Hardtanh={},
        Hardsigmoid={}, Mish={}, LogSigmoid={}, Softsign={}, SELU={}, Abs={}, Exp={}, Scale=dict(factor=2.0, offset=0.5),
        GELU={}, PReLU={}, Softmax=dict(dim=1), LogSoftmax=dict(dim=1), Dropout={}).items():
    case("layer_" + kind, chain(layer("Linear", 37, 53), layer(kind, **options), layer("Linear", 53, 11)), [37], 29)

FROM_BYTES = Written("nn.Sequential{nn.FromBytes(), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 9, 11)}",
                     lambda: nn.Sequential(FromBytes(), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 9, 11)))
for precision in "fp32", "amp_bf16":
    case("bytes_" + precision, FROM_BYTES, [3, 9, 11], 29, precision=precision, tokens="bytes")
    case("glu_" + precision, chain(layer("Conv1d", 5, 14, 3), layer("GLU", 1), layer("Conv1d", 7, 8, 3), layer("Linear", 27, 22),
                                   layer("GLU"), layer("Tanh")), [5, 31], 29, loss("MSELoss"), precision=precision)

for name, model, shape in (
        ("conv1d", layer("Conv1d", 5, 7, 3), [5, 31]),
        ("conv_transpose", layer("ConvTranspose2d", 5, 7, 3, stride=2), [5, 11, 13]),
        ("groupnorm", layer("GroupNorm", 2, 6), [6, 11, 13]), ("instancenorm", layer("InstanceNorm2d", 5), [5, 11, 13]),
        ("layernorm", layer("LayerNorm", 13), [5, 13]), ("rmsnorm", layer("RMSNorm", 13), [5, 13]),
        ("linear3d", layer("Linear", 13, 17), [5, 13]), ("linear3d_nobias", layer("Linear", 13, 17, bias=False), [5, 13]),
        ("avgpool", layer("AvgPool2d", 2), [5, 11, 13]), ("maxpool", layer("MaxPool2d", 2), [5, 11, 13]),
        ("upsample", layer("Upsample", scale_factor=2), [5, 11, 13]),
        ("attention", layer("CausalSelfAttention", 24, 3), [11, 24])):
    first = layer("Conv2d", shape[0], shape[0], 1) if len(shape) == 3 else layer("Linear", shape[-1], shape[-1])
    case("layer_" + name, chain(first, model, layer("Tanh")), shape, 29, loss("MSELoss"))
case("layer_rmsnorm_amp_bf16", chain(layer("Linear", 13, 13), layer("RMSNorm", 13), layer("Tanh")), [5, 13], 29,
     loss("MSELoss"), precision="amp_bf16")


def attentive(width):
    """q, k and v with fewer heads of keys and values, as rows; then what torch.nn.functional has"""
    return Written(f"""nn.Graph{{q = nn.Linear(24, 4 * {width}), k = nn.Linear(24, 2 * {width}), v = nn.Linear(24, 2 * {width}),
    forward = function(self, x)
      local q, k, v = self.q(x), self.k(x), self.v(x)
      return nn.scaled_dot_product_attention(q, k, v, {{num_heads = 4, is_causal = true, enable_gqa = true}})
    end}}""", lambda: networks.Attentive(24, width))


for name, width, precision, chosen in (
        ("fp32", 8, "fp32", None), ("fp32_math", 8, "fp32", "math"), ("fp32_efficient", 8, "fp32", "memory_efficient"),
        ("fp32_odd", 6, "fp32", None), ("amp_bf16", 8, "amp_bf16", None), ("amp_bf16_math", 8, "amp_bf16", "math"),
        ("amp_fp16_math", 8, "amp_fp16", "math"), ("amp_bf16_efficient", 8, "amp_bf16", "memory_efficient"),
        ("amp_bf16_cudnn", 8, "amp_bf16", "cudnn"), ("amp_bf16_odd", 6, "amp_bf16", None)):
    for mode in "train", "eval":
        case(f"attention_{name}_{mode}", attentive(width), [11, 24], 5, loss("MSELoss"), precision=precision, mode=mode,
             pytorch=dict(attention=chosen) if chosen else {}, newest_only=chosen == "cudnn")


def masked(width, bias=(), frozen=False, turned=False, keys=4, **how):
    parameter = f"bias = nn.{'Frozen(nn.Parameter' if frozen else 'Parameter'}{{{lua(list(bias))[1:-1]}}}{')' * frozen}, "
    return Written(f"""nn.Graph{{q = nn.Linear(24, 4 * {width}), k = nn.Linear(24, {keys} * {width}),
    v = nn.Linear(24, {keys} * {width}), {parameter if bias else ""}
    order = {{"q", "k", "v"{', "bias"' if bias else ""}}},
    forward = function(self, x)
      local q, k, v = self.q(x), self.k(x), self.v(x)
      {"local bias = self.bias" + (":transpose(0, 2)" if turned else "") if bias else ""}
      return nn.scaled_dot_product_attention(q, k, v, {"bias, " if bias else ""}{{num_heads = 4, enable_gqa = true,
        {", ".join(f"{name} = {lua(value)}" for name, value in how.items())}}})
    end}}""", lambda: networks.Masked(24, width, keys, bias, frozen, turned, **how))


for name, steps, batch, options in (
        ("bias", 11, 5, dict(bias=(11, 11))), ("bias_aligned", 24, 5, dict(bias=(24, 24))), ("bias_whole", 16, 3, dict(bias=(3, 4, 16, 16))),
        ("bias_heads", 11, 5, dict(bias=(4, 11, 11), dropout_p=0.5)), ("bias_turned", 16, 5, dict(bias=(16, 16, 4), turned=True)),
        ("bias_turned_causal", 16, 5, dict(bias=(16, 16, 4), turned=True, is_causal=True)),
        ("bias_frozen", 11, 5, dict(bias=(1, 4, 11, 11), frozen=True)), ("bias_causal", 11, 5, dict(bias=(11, 11), is_causal=True)),
        ("bias_window", 11, 5, dict(bias=(4, 11, 11), is_causal=True, window=3)),
        ("window", 11, 5, dict(keys=2, is_causal=True, window=3)), ("window_aligned", 16, 5, dict(is_causal=True, window=3, dropout_p=0.5)),
        ("softcap", 11, 5, dict(softcap=5., dropout_p=0.5)), ("softcap_causal", 11, 5, dict(keys=2, softcap=5., is_causal=True)),
        ("softcap_all", 11, 5, dict(keys=2, softcap=5., is_causal=True, window=3, bias=(4, 11, 11)))):
    for precision in "fp32", "amp_bf16", "amp_fp16":
        for mode in "train", "eval":
            case(f"masked_{name}_{precision}_{mode}", masked(8, **options), [steps, 24], batch, loss("MSELoss"), precision=precision,
                 mode=mode)
    for chosen, precision in (("math", "fp32"), ("math", "amp_bf16"), ("cudnn", "amp_bf16")):
        if "softcap" not in options:
            case(f"masked_{name}_{chosen}_{precision}", masked(8, **options), [steps, 24], batch, loss("MSELoss"), precision=precision,
                 pytorch=dict(attention=chosen), newest_only=chosen == "cudnn")
    case(f"masked_{name}_offload", masked(8, **options), [steps, 24], batch, loss("MSELoss"), settings=dict(offload="all"))
for name in "Softmax", "LogSoftmax":
    case(f"layer_{name}_amp_fp16", CASES["layer_" + name].model, [37], 29, precision="amp_fp16")

for chosen, precision in (("math", "fp32"), ("math", "amp_bf16"), ("memory_efficient", "amp_bf16"), ("cudnn", "amp_bf16")):
    case(f"multihead_{chosen}_{precision}", chain(layer("Linear", 24, 24), layer("MultiheadAttention", 24, 3, batch_first=True,
         dropout=0.5), layer("Linear", 24, 11)), [17, 24], 29, loss("MSELoss"), precision=precision, pytorch=dict(attention=chosen),
         newest_only=chosen == "cudnn")

for name, terms, model in (
        ("cross_entropy_smoothed", loss(label_smoothing=0.1), layer("Identity")),
        ("cross_entropy_weighted", loss(weight=[0.5] * 11), layer("Identity")),
        ("nll", loss("NLLLoss"), layer("LogSoftmax", dim=1)),
        ("mse", loss("MSELoss"), layer("Identity")), ("l1", loss("L1Loss"), layer("Identity")),
        ("smooth_l1", loss("SmoothL1Loss"), layer("Identity")), ("huber", loss("HuberLoss"), layer("Identity")),
        ("bce", loss("BCELoss"), layer("Sigmoid")), ("bce_logits", loss("BCEWithLogitsLoss"), layer("Identity")),
        ("bce_logits_weighted", loss("BCEWithLogitsLoss", pos_weight=[0.5] * 11), layer("Identity")),
        ("mse_sum", loss("MSELoss", reduction="sum"), layer("Identity"))):
    for precision in "fp32", "amp_bf16":
        case("loss_" + name + ("" if precision == "fp32" else "_amp_bf16"), chain(layer("Linear", 37, 11), model), [37], 29, terms,
             precision=precision)

case("loss_l1_eval", chain(layer("Linear", 37, 11)), [37], 29, loss("L1Loss"), mode="eval")
for name, options in dict(batch_first=dict(batch_first=True), time_first={}, unbiased=dict(batch_first=True, bias=False)).items():
    for precision in "fp32", "amp_bf16":
        case(f"multihead_{name}_{precision}", chain(layer("Linear", 24, 24), layer("MultiheadAttention", 24, 3, **options),
                                                    layer("Linear", 24, 11)), [17, 24], 29, loss("MSELoss"), precision=precision)
for name, options in dict(weights={}, weights_apart=dict(average_attn_weights=False), weights_causal=dict(is_causal=True),
                          weights_unbiased=dict(bias=False, dropout=0.), weights_time_first=dict(batch_first=False)).items():
    for precision in "fp32", "amp_bf16", "amp_fp16":
        case(f"multihead_{name}_{precision}", chain(layer("Linear", 24, 24), layer("MultiheadAttention", 24, 3, **{
            "batch_first": True, "need_weights": True, "dropout": 0.5, **options}), layer("Linear", 24, 11)), [17, 24], 29, loss("MSELoss"),
             precision=precision)
    case(f"multihead_{name}_eval", CASES[f"multihead_{name}_fp32"].model, [17, 24], 29, loss("MSELoss"), mode="eval")
case("lines", chain(layer("Conv1d", 3, 8, 3), layer("BatchNorm1d", 8), layer("MaxPool1d", 2), layer("AvgPool1d", 2),
                    layer("AdaptiveAvgPool1d", 2), layer("InstanceNorm1d", 8, affine=True), layer("Flatten"),
                    layer("Linear", 16, 5)), [3, 31], 29)
case("shuffles", chain(layer("Conv2d", 3, 8, 3), layer("PixelShuffle", 2), layer("PixelUnshuffle", 2),
                       layer("ChannelShuffle", 2), layer("Conv2d", 8, 7, 1)), [3, 12, 14], 29, loss("MSELoss"))
case("padded", chain(layer("Conv2d", 3, 8, 3), layer("ZeroPad2d", [1, 2, 0, 1]), layer("Dropout2d", 0.3),
                     layer("Upsample", scale_factor=2, mode="bilinear"), layer("Conv2d", 8, 7, 1)), [3, 12, 14], 29,
     loss("MSELoss"))
case("turned", chain(layer("Linear", 13, 16), layer("Transpose", 1, 2), layer("Linear", 17, 6), layer("Select", 1, 3),
                     layer("Linear", 6, 5)), [17, 13], 29)
case("in_place", chain(layer("Linear", 13, 16), layer("Dropout", 0.3, inplace=True), layer("ReLU", inplace=True),
                       layer("Linear", 16, 5)), [13], 29)

for name, kind, options in (
        ("rnn", "RNN", {}), ("rnn_relu_deep", "RNN", dict(nonlinearity="relu", num_layers=2)), ("lstm", "LSTM", {}),
        ("lstm_batch_first", "LSTM", dict(batch_first=True)), ("gru_unbiased", "GRU", dict(bias=False)),
        ("gru_batch_first", "GRU", dict(batch_first=True, num_layers=2)),
        ("lstm_dropout", "LSTM", dict(num_layers=3, dropout=0.3, bidirectional=True, batch_first=True)),
        ("lstm_wide", "LSTM", dict(num_layers=2, hidden_size=233))):
    units = options.pop("hidden_size", 11)
    both = units * (2 if options.get("bidirectional") else 1)
    case(name, chain(layer("Linear", 13, 7), layer(kind, 7, units, **options), layer("Linear", both, 5)), [17, 13], 19,
         loss("MSELoss"))
    if name in ("lstm", "lstm_dropout"):
        case(name + "_eval", CASES[name].model, [17, 13], 19, loss("MSELoss"), mode="eval")
        case(name + "_accumulate", CASES[name].model, [17, 13], 19, loss("MSELoss"), accumulate=3)
        for precision in "amp_bf16", "amp_fp16":
            case(f"{name}_{precision}", CASES[name].model, [17, 13], 19, loss("MSELoss"), precision=precision)
case("lstm_first", chain(layer("LSTM", 13, 11), layer("Flatten"), layer("Linear", 17 * 11, 5)), [17, 13], 19,
     optimizer=layer("SGD", lr=0.01, momentum=0.9))
case("lstm_first_amp_bf16", CASES["lstm_first"].model, [17, 13], 19, precision="amp_bf16")
case("lstm_checkpointed", chain(Spec("Checkpoint", children=[chain(layer("LSTM", 13, 11), layer("Linear", 11, 7))]),
                                layer("Flatten"), layer("Linear", 17 * 7, 5)), [17, 13], 19,
     settings=dict(checkpoint="marked"))
case("lstm_clipped", chain(layer("LSTM", 13, 11), layer("Flatten"), layer("Linear", 17 * 11, 5)), [17, 13], 19,
     optimizer=layer("AdamW", lr=0.01, clip_norm=1.0), pytorch=dict(foreach=False))

OPTIMIZERS = {
    "sgd": layer("SGD", lr=0.01), "sgd_decay": layer("SGD", lr=0.01, weight_decay=0.1),
    "sgd_momentum": layer("SGD", lr=0.01, momentum=0.9),
    "sgd_nesterov": layer("SGD", lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": ADAM, "adam_decay": layer("Adam", lr=0.01, weight_decay=0.1), "amsgrad": layer("Adam", lr=0.01, amsgrad=True),
    "adamw": layer("AdamW", lr=0.01), "radam": layer("RAdam", lr=0.01), "radam_decay": layer("RAdam", lr=0.01, weight_decay=0.1),
    "nadam": layer("NAdam", lr=0.01),
    "nadam_decay": layer("NAdam", lr=0.01, weight_decay=0.1), "nadam_decoupled": layer(
        "NAdam", lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "adamax": layer("Adamax", lr=0.01), "lion": layer("Lion", lr=1e-4), "paged_adam": layer("PagedAdam", lr=0.01),
    "paged_adam8bit": layer("PagedAdam8bit", lr=0.01), "paged_adamw": layer("PagedAdamW", lr=0.01, clip_norm=1.0),
    "paged_adamw8bit": layer("PagedAdamW8bit", lr=0.01), "paged_lion": layer("PagedLion", lr=1e-4),
    "rmsprop": layer("RMSprop", lr=0.01), "rmsprop_momentum": layer("RMSprop", lr=0.01, momentum=0.9),
    "rmsprop_centered": layer("RMSprop", lr=0.01, momentum=0.9, centered=True), "adagrad": layer("Adagrad", lr=0.01),
    "adadelta": layer("Adadelta", lr=0.01), "adafactor": layer("Adafactor", lr=0.01),
    "clipped": layer("AdamW", lr=0.01, clip_norm=1.0)}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
for name, optimizer in OPTIMIZERS.items():
    case("optim_" + name, mlp(), [784], 64, optimizer=optimizer)
    case("optim_" + name + "_forloop", mlp(), [784], 64, optimizer=optimizer, pytorch=dict(foreach=False))
    if optimizer.kind in FUSED:
        case("optim_" + name + "_fused", mlp(), [784], 64, optimizer=optimizer, pytorch=dict(fused=True))

for name in "paged_adam", "paged_adamw8bit":  # states that stay on the device, of blocks that are not whole
    case(f"optim_{name}_small", chain(layer("Linear", 784, 101), layer("ReLU"), layer("Linear", 101, 10)), [784], 64,
         optimizer=OPTIMIZERS[name])
    case(f"optim_{name}_amp_fp16", mlp(), [784], 64, optimizer=OPTIMIZERS[name], precision="amp_fp16")
for kind in "Adamax", "RMSprop", "Adagrad", "Adadelta":
    for form, chosen in dict(foreach={}, forloop=dict(foreach=False)).items():
        case(f"optim_{kind}_decay_{form}", mlp(), [784], 64, optimizer=layer(kind, lr=0.01, weight_decay=0.1), pytorch=chosen)
case("optim_adafactor_images", normalised(), [3, 32, 32], 19, optimizer=layer("Adafactor", lr=0.01))
case("mlp_gradients_kept", mlp(), [784], 64, pytorch=dict(set_to_none=False))

# ---- techniques

for precision in "amp_bf16", "amp_fp16":
    case("mlp_" + precision, mlp(), [784], 64, precision=precision)
    case("normalised_" + precision, normalised(), [3, 32, 32], 19, precision=precision)
case("mlp_accumulate", mlp(), [784], 16, accumulate=4)
case("mlp_eval", mlp(), [784], 64, mode="eval")
case("mlp_amp_fp16_accumulate", mlp(), [784], 16, accumulate=3, precision="amp_fp16")
case("mlp_amp_fp16_clipped", mlp(), [784], 16, precision="amp_fp16", optimizer=OPTIMIZERS["clipped"])
case("mlp_amp_fp16_fused_clipped", mlp(), [784], 16, precision="amp_fp16", optimizer=OPTIMIZERS["clipped"], pytorch=dict(fused=True))
for form, chosen in dict(foreach={}, forloop=dict(foreach=False), fused=dict(fused=True)).items():
    case(f"mlp_frozen_adagrad_{form}", chain(replace(layer("Linear", 784, 300), frozen=True), layer("ReLU"), layer("Linear", 300, 10)), [784], 16,
         optimizer=layer("Adagrad", lr=0.01), pytorch=chosen)
case("mlp_checkpointed_whole", Spec("Checkpoint", children=[mlp()]), [784], 16, settings=dict(checkpoint="marked"), pytorch=dict(use_reentrant=True))
case("mlp_amp_fp16_unscaled", mlp(), [784], 16, precision="amp_fp16", settings=dict(grad_scaler=False))
case("mlp_amp_fp16_scaler", mlp(), [784], 16, precision="amp_fp16", settings=dict(grad_scaler=dict(init_scale=1024.0, growth_interval=3)))
case("mlp_amp_fp16_disabled", mlp(), [784], 16, precision="amp_fp16", settings=dict(grad_scaler=dict(enabled=False)))
case("mlp_amp_bf16_scaled", mlp(), [784], 16, precision="amp_bf16", settings=dict(grad_scaler=True))
case("mlp_fp32_scaled", mlp(), [784], 16, settings=dict(grad_scaler=True))
case("normalised_eval", normalised(), [3, 32, 32], 19, mode="eval")
case("normalised_eval_amp_bf16", normalised(), [3, 32, 32], 19, mode="eval", precision="amp_bf16")


case("embedding", chain(layer("Embedding", 97, 24), layer("PositionEmbedding", 16, 24),
                        layer("CausalSelfAttention", 24, 3), layer("LayerNorm", 24), layer("Linear", 24, 97),
                        layer("Flatten", 0, 1)), [13], 5, tokens=True)
case("residual", chain(layer("Conv2d", 3, 8, 3, padding=1), Spec("Residual", children=[chain(
    layer("Conv2d", 8, 8, 3, padding=1, bias=False), layer("BatchNorm2d", 8), layer("ReLU"),
    layer("Conv2d", 8, 8, 3, padding=1, bias=False), layer("BatchNorm2d", 8))]), layer("ReLU"), layer("Flatten"),
    layer("Linear", 8 * 12 * 12, 10)), [3, 12, 12], 9)


def blocks():
    block = [chain(layer("Linear", 60 + i, 300), layer("GELU"), layer("Linear", 300, 61 + i)) for i in range(3)]
    return chain(layer("Linear", 60, 60), *(Spec("Checkpoint", children=[b]) for b in block), layer("Linear", 63, 10))


MARKED = dict(settings=dict(checkpoint="marked"))
case("checkpointed", blocks(), [60], 64, **MARKED)
case("checkpointed_amp_bf16", blocks(), [60], 64, **MARKED, precision="amp_bf16")
case("checkpointed_reentrant", blocks(), [60], 64, **MARKED, pytorch=dict(use_reentrant=True))
case("checkpointed_reentrant_amp_bf16", blocks(), [60], 64, **MARKED, precision="amp_bf16", pytorch=dict(use_reentrant=True))
for width, depth in (61, 7), (53, 10), (47, 2):
    deep = chain(*(l for i in range(depth) for l in (layer("Linear", width + i, width + 1 + i), layer("ReLU"))))
    case(f"sqrt_{depth}", deep, [width], 64, loss("MSELoss"), settings=dict(checkpoint="sqrt"))
    case(f"sqrt_{depth}_amp_bf16", deep, [width], 64, loss("MSELoss"), settings=dict(checkpoint="sqrt"), precision="amp_bf16")
case("sqrt_eval", CASES["sqrt_7"].model, [61], 64, loss("MSELoss"), settings=dict(checkpoint="sqrt"), mode="eval")
case("sqrt_images", normalised(), [3, 32, 32], 19, settings=dict(checkpoint="sqrt"))
case("mlp_offload", mlp(), [784], 64, settings=dict(offload="all"))
case("mlp_offload_amp_fp16", mlp(), [784], 64, precision="amp_fp16", settings=dict(offload="all"))
case("mlp_offload_accumulate", mlp(), [784], 16, settings=dict(offload="all"), accumulate=3)
for name in "convnet normalised lstm gru_batch_first residual layer_attention loss_mse layer_groupnorm layer_layernorm".split():
    given = CASES[name]
    case(name + "_offload", given.model, given.input, given.batch, given.loss, given.optimizer, settings=dict(offload="all"))
    case(name + "_offload_amp_bf16", given.model, given.input, given.batch, given.loss, given.optimizer,
         precision="amp_bf16", settings=dict(offload="all"))
case("pooled_offload_last", chain(layer("Conv2d", 5, 5, 1), layer("AvgPool2d", 2), layer("Tanh")), [5, 11, 13], 29, loss("MSELoss"),
     settings=dict(offload="all"), pytorch=dict(channels_last=True))  # what is saved comes back in order
case("mlp_amp_fp16_fused", mlp(), [784], 64, precision="amp_fp16", pytorch=dict(fused=True))


# The same in Lua as networks.Variables; `local` in a loop's body is a name of the function in Python.
VARIABLES = Written("""nn.Graph{first = nn.Linear(37, 53), second = nn.Linear(53, 41), last = nn.Linear(41, 11),
    forward = function(self, x)
      local function scaled(x)
        local twice = x * 2
        x = twice + 1
        return x
      end
      local function ended(x)
        local half = x * 0.5
        local shifted = half + 3
        return self.last(shifted)
      end
      local h = self.first(x)
      h = nn.relu(h)
      local y = self.second(h)
      local kept = {}
      for i = 1, 3 do
        local wide = y + 1
        kept[#kept + 1] = wide
        y = scaled(wide * 3)
      end
      y = nn.tanh(scaled(y))
      return ended(y)
    end}""", networks.Variables)
case("variables", VARIABLES, [37], 29)
case("variables_eval", VARIABLES, [37], 29, mode="eval")

TWO_INPUTS = Written("""nn.Graph{embed = nn.Embedding(97, 24), conv = nn.Conv2d(3, 16, 3), fc = nn.Linear(40, 11),
    forward = function(self, ids, pixels)
      local words = self.embed(ids):mean(1)
      local image = nn.relu(self.conv(pixels)):mean({2, 3})
      return self.fc(nn.cat({words, image}, 1))
    end}""", networks.TwoInputs)
for name, options in dict(two_inputs={}, two_inputs_amp_bf16=dict(precision="amp_bf16"), two_inputs_accumulate=dict(accumulate=2),
                          two_inputs_eval=dict(mode="eval"), two_inputs_channels_last=dict(pytorch=dict(channels_last=True))).items():
    case(name, TWO_INPUTS, {"ids": [13], "pixels": [3, 9, 9]}, 5, tokens=["ids"], **options)
case("two_products", Written("""nn.Graph{a = nn.Parameter{19, 24}, b = nn.Parameter{19, 24}, c = nn.Parameter{24, 24},
    order = {"a", "b", "c"},
    forward = function(self, x)
      local h = nn.tanh(nn.einsum("btd,ed->bte", x, self.c))
      return nn.einsum("btd,od->bto", h, self.a) * nn.einsum("btd,od->bto", h, self.b)
    end}""", networks.TwoProducts), [11, 24], 5, loss("MSELoss"))
case("windows", Written("""(function()
    local distance = {}
    for i = 0, 7 do for j = 0, 7 do distance[#distance + 1] = i - j + 7 end end
    return nn.Graph{scale = nn.Parameter{3, 1, 1}, table = nn.Parameter{15, 3}, mix = nn.Parameter{13, 24},
      distance = nn.Buffer(distance, {dtype = "int64"}), all = nn.Linear(24, 72),
      order = {"scale", "table", "mix", "distance", "all"},
      forward = function(self, x)
        local every, parts = self.all(x), {}
        for i = 0, 2 do parts[i] = every:narrow(2, i * 24, 24):view(-1, 8, 3, 8):transpose(1, 2) end
        local near = nn.matmul(nn.normalize(parts[0], {dim = -1}), nn.normalize(parts[1], {dim = -1}):transpose(-2, -1))
        near = near * self.scale:clamp{max = 0.3}:exp()
        near = near + self.table[self.distance]:view(8, 8, 3):permute(2, 0, 1)
        local y = nn.matmul(near:softmax(-1), parts[2]):transpose(1, 2):reshape(-1, 8, 24)
        return nn.linear(y:roll(1, 1):narrow(1, 0, 4, {step = 2}), 2 * self.mix)
      end}
  end)()""", networks.Windows), [8, 24], 29, loss("MSELoss"))
case("scaled_rows", Written("""nn.Graph{scale = nn.Parameter{17}, first = nn.Linear(13, 17), last = nn.Linear(17, 11),
    order = {"scale", "first", "last"},
    forward = function(self, x) return self.last(self.first(x) * self.scale) end}""", networks.ScaledRows), [3, 5, 13], 29,
     loss("MSELoss"))


# ---- mt.models

def model(name, lua_options, make, input, batch, *args, **rest):
    case("model_" + name, Written(f"models.{name.split('_')[0]}{{{lua_options}}}", make), input, batch, *args, **rest)


TOKENS = dict(tokens=True)
CE, SGD = loss(), OPTIMIZERS["sgd_momentum"]
HEADS = [(1, Spec("CrossEntropyLoss")), (0.3, Spec("CrossEntropyLoss")), (0.3, Spec("CrossEntropyLoss"))]
model("MLP", "", networks.mlp, [784], 64)
model("LeNet", "", networks.LeNet, [1, 28, 28], 64)
model("SimpleCNN", "", networks.simple_cnn, [1, 28, 28], 64)
model("SmallerConvNet", "", lambda: networks.convnet(32), [3, 32, 32], 64)
model("VGG11", "", lambda: networks.VGG(1, 1, 2, 2, 2), [3, 64, 64], 4)
model("ResNet18", "", networks.resnet18, [3, 64, 64], 16)
model("ResNet18_amp_bf16", "", networks.resnet18, [3, 64, 64], 16, precision="amp_bf16")
model("ResNet18_eval", "", networks.resnet18, [3, 64, 64], 16, mode="eval")
model("ResNet50", "", networks.resnet50, [3, 64, 64], 8, CE, SGD)
model("GoogLeNet", "", networks.GoogLeNet, [3, 224, 224], 4, HEADS)
model("GPT", "block_size = 24, vocab_size = 97, n_layer = 2, n_head = 4, n_embd = 64",
      lambda: networks.GPT(24, 97, 2, 4, 64), [24], 8, optimizer=OPTIMIZERS["clipped"], **TOKENS)
for precision in "amp_bf16", "amp_fp16":
    model("GPT_" + precision, "block_size = 24, vocab_size = 97, n_layer = 2, n_head = 4, n_embd = 64, dropout = 0.1",
          lambda: networks.GPT(24, 97, 2, 4, 64, 0.1), [24], 8, precision=precision, **TOKENS)
LLAMA = ("vocab_size = 512, hidden_size = 384, intermediate_size = 1024, num_hidden_layers = 2, num_attention_heads = 6, "
         "num_key_value_heads = ")
for heads in 2, 6:
    for precision in "fp32", "amp_bf16", "amp_fp16":
        model(f"Llama_{heads}_{precision}", LLAMA + str(heads), lambda heads=heads: networks.llama(512, 384, 1024, 2, 6, heads),
              [64], 4, precision=precision, optimizer=layer("AdamW", lr=3e-4), **TOKENS)
for reentrant in False, True:
    for precision in "fp32", "amp_bf16":
        model(f"Llama_checkpointed_{'reentrant_' if reentrant else ''}{precision}", LLAMA + "2",
              lambda reentrant=reentrant: networks.llama(512, 384, 1024, 2, 6, 2, dict(use_reentrant=reentrant)), [64], 4,
              precision=precision, optimizer=layer("AdamW", lr=3e-4), pytorch=dict(use_reentrant=reentrant), **TOKENS, **MARKED)
model("Llama_accumulate", LLAMA + "2", lambda: networks.llama(512, 384, 1024, 2, 6, 2), [64], 2, accumulate=2,
      precision="amp_bf16", optimizer=layer("AdamW", lr=3e-4), **TOKENS)
model("Llama_eval", LLAMA + "2", lambda: networks.llama(512, 384, 1024, 2, 6, 2), [64], 4, mode="eval",
      precision="amp_bf16", **TOKENS)
model("Llama_short", LLAMA + "2", lambda: networks.llama(512, 384, 1024, 2, 6, 2), [1], 3, **TOKENS)


def lora(name, options, more="", checkpointing=None, **rest):
    """The same Llama with adapters, whose options are written as in Lua"""
    made = dict(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    made.update(options)
    written = ", ".join(f"{key} = {lua(value)}" for key, value in made.items())
    case("lora_" + name, Written(f"mt.peft.lora(models.Llama{{{LLAMA}2}}, {{{written}}})",
         lambda: networks.lora(networks.llama(512, 384, 1024, 2, 6, 2, checkpointing), rest.get("precision") == "bf16", **made)),
         [64], 4, optimizer=layer("AdamW", lr=3e-4), **TOKENS, **rest)


for precision in "fp32", "amp_bf16", "bf16":
    lora(precision, {}, precision=precision)
    lora("all_" + precision, dict(target_modules="all-linear", lora_dropout=0.0, lora_alpha=8), precision=precision)
    lora("checkpointed_" + precision, dict(target_modules="all-linear"), checkpointing=dict(use_reentrant=False),
         precision=precision, **MARKED)
lora("eval", {}, precision="amp_bf16", mode="eval")
for precision in "fp32", "amp_bf16", "bf16":
    lora("dora_" + precision, dict(use_dora=True), precision=precision)
    lora("dora_all_" + precision, dict(use_dora=True, target_modules="all-linear", lora_dropout=0.0, lora_alpha=8), precision=precision)
    lora("dora_checkpointed_" + precision, dict(use_dora=True, target_modules="all-linear"), checkpointing=dict(use_reentrant=False),
         precision=precision, **MARKED)
lora("dora_eval", dict(use_dora=True), precision="amp_bf16", mode="eval")


def qlora(name, bits, quantized, options={}, checkpointing=None, **rest):
    made = dict(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    made.update(options)
    written = ", ".join(f"{key} = {lua(value)}" for key, value in made.items())
    case("qlora_" + name, Written(f"mt.peft.lora(mt.peft.quantize(models.Llama{{{LLAMA}2}}, {{{quantized}}}), {{{written}}})",
         lambda: networks.lora(networks.llama(512, 384, 1024, 2, 6, 2, checkpointing), rest.get("precision") == "bf16", bits,
                               "double_quant = true" in quantized, **made)),
         [64], 4, optimizer=layer("AdamW", lr=3e-4), **TOKENS, **rest)


NF4 = 'load_in_4bit = true, bnb_4bit_quant_type = "nf4"'
for precision in "amp_bf16", "bf16":
    qlora("nf4_" + precision, 4, NF4, precision=precision)
    qlora("nested_" + precision, 4, NF4 + ", bnb_4bit_use_double_quant = true", dict(target_modules="all-linear"), precision=precision)
    qlora("nested_checkpointed_" + precision, 4, NF4 + ", bnb_4bit_use_double_quant = true", dict(target_modules="all-linear"),
          checkpointing=dict(use_reentrant=False), precision=precision, **MARKED)
    qlora("int8_" + precision, 8, "load_in_8bit = true", precision=precision)
    qlora("dora_nested_" + precision, 4, NF4 + ", bnb_4bit_use_double_quant = true", dict(use_dora=True, target_modules="all-linear"),
          precision=precision)
    qlora("dora_plain_" + precision, 4, NF4, dict(use_dora=True, lora_dropout=0.0), precision=precision)
    qlora("dora_int8_" + precision, 8, "load_in_8bit = true", dict(use_dora=True), precision=precision)
lora("accumulate", {}, precision="bf16", accumulate=2)
model("DCGANGenerator", "", networks.generator, [100, 1, 1], 16, loss("MSELoss"))
model("DCGANDiscriminator", "", networks.discriminator, [3, 64, 64], 16, loss("BCEWithLogitsLoss"))
model("UNet", "", networks.UNet, [3, 64, 64], 2, loss("BCEWithLogitsLoss"))

# ---- experiments/: those that return one; of the others the network is one of mt.models' above


def experiment(name, script, options, make, input, batch, *args, **rest):
    case("experiment_" + name, Experiment(script, options, make), input, batch, *args, **rest)


for name, chosen, rest in (
        ("baseline", "baseline, batch 64", {}), ("batch_32", "batch 32", dict(batch=32)),
        ("half", "half the channels", dict(make=lambda: networks.convnet(32))),
        ("amp_bf16", "mixed precision", dict(precision="amp_bf16")),
        ("accumulate", "accumulation 16 x 4", dict(batch=16, accumulate=4)),
        ("eval", "evaluation, no gradients", dict(mode="eval")),
        ("momentum", "SGD with momentum", dict(optimizer=SGD))):
    experiment("article_" + name, "article", ["--case", chosen], **{
        "make": networks.convnet, "input": [3, 32, 32], "batch": 64, **rest})
for precision, accumulate in ("fp32", 4), ("amp_bf16", 1), ("amp_bf16", 4):
    experiment(f"batch_by_precision_{precision}_{accumulate}", "batch_by_precision", [
        "--set", "batch=8", "--set", f"precision={precision}", "--set", f"accumulate={accumulate}"],
        networks.convnet, [3, 32, 32], 8, precision=precision, accumulate=accumulate)
for parts in 0, 2, 4, 6:
    experiment(f"freeze_{parts}", "freeze", ["--set", f"frozen_parts={parts}"],
               lambda parts=parts: networks.frozen_resnet18(parts), [3, 64, 64], 16)
for batch, precision in (1, "fp32"), (16, "amp_bf16"):
    experiment(f"vgg16_memory_{precision}", "vgg16_memory", [
        "--set", f"batch={batch}", "--set", f"precision={precision}", "--set", "checkpoint=none"],
        networks.flat_vgg16, [3, 224, 224], batch, CE, SGD, precision=precision)
for mode, precision in ("train", "fp32"), ("train", "amp_bf16"), ("eval", "fp32"):
    experiment(f"vae_{mode}_{precision}", "vae", [
        "--set", "batch=128", "--set", f"precision={precision}", "--set", f"mode={mode}"], networks.VAE, [784], 128,
        [(1, Spec("BCEWithLogitsLoss", [], dict(reduction="sum"))), (-0.5, Spec("IdentityLoss", [], dict(reduction="sum")))],
        mode=mode, precision=precision)
for precision in "fp32", "amp_bf16":
    experiment(f"vit_{precision}", "vit", [
        "--set", "batch=8", "--set", f"precision={precision}", "--set", "checkpoint=none"], networks.ViT, [3, 64, 64], 8,
        loss(label_smoothing=0.1), layer("AdamW", lr=1e-3, weight_decay=0.05), precision=precision)
    experiment(f"llama_{precision}", "llama", [
        "--set", "seq=64", "--set", "batch=4", "--set", f"precision={precision}", "--set", "checkpoint=none"],
        lambda: networks.llama(512, 128, 352, 4, 8, 2), [64], 4, CE, layer("AdamW", lr=3e-4, betas=[0.9, 0.95], weight_decay=0.1),
        precision=precision, **TOKENS)
experiment("offload_kept", "offload", ["--case", "none, kept"], lambda: networks.GPT(128, 512, 8, 4, 128), [128], 8, CE,
           layer("AdamW", lr=1e-3), **TOKENS)

# ---- random ones, of make peer-fuzz

# Recurrent layers, and those for which fuzz_networks.py has numbers or masks on the host. Losses are left out that PyTorch has not, or whose
# intermediate results have sizes that follow from the labels (masked_select).
NOT_DRAWN = {"RotaryPositionalEmbeddings", "MultiheadAttention", "RNN", "LSTM", "GRU", *fuzz.LOW_BIT}


def overwrite_nothing(spec):
    """Where a drawn network writes over a value that the backward pass reads, PyTorch refuses it."""
    spec.options.pop("inplace", None)
    for child in spec.children.values() if isinstance(spec.children, dict) else spec.children:
        overwrite_nothing(child)


def random_case(seed):
    drawn = fuzz.draw(seed, 1)
    kinds = fuzz.kinds_of(drawn["net"]) | {drawn["optimizer"].kind}
    if kinds & NOT_DRAWN or any("lse_square_scale" in term.options or {"weight", "label_smoothing"} <= set(term.options)
                                for _, term in drawn["losses"]):
        return
    overwrite_nothing(drawn["net"])
    optimizer = drawn["optimizer"]
    if drawn["clip"]:
        optimizer = Spec(optimizer.kind, [], {**optimizer.options, "clip_norm": drawn["clip"]})
    case(f"random_{seed}", drawn["net"], drawn["input"][1:], drawn["input"][0], drawn["losses"], optimizer,
         tokens=bool(drawn["tokens"]), accumulate=drawn["accumulate"],
         settings=dict(checkpoint="marked") if "Checkpoint" in kinds else {})


for seed in range(1, 61):
    random_case(seed)

# ---- the same with model and input in channels_last

def channels_last(name, known=""):
    kept = CASES[name]
    CASES[name + "_last"] = replace(kept, name=kept.name + "_last", pytorch={**kept.pytorch, "channels_last": True},
                                    known=kept.known or known)


for name in ("convnet normalised normalised_amp_bf16 normalised_eval residual variables layer_conv_transpose layer_groupnorm "
             "layer_instancenorm layer_avgpool layer_maxpool layer_upsample model_LeNet model_VGG11 model_ResNet18 "
             "model_ResNet18_amp_bf16 model_ResNet18_eval model_UNet mlp").split():
    channels_last(name)
for name in [name for name in CASES if name.startswith("random_") and len(CASES[name].input) == 3]:
    channels_last(name)

# ---- a rank of several

def ranks(name, wrapper, **more):
    kept = CASES[name]
    more = {key: {**getattr(kept, key), **value} if isinstance(value, dict) else value for key, value in more.items()}
    CASES[wrapper + "_" + name] = replace(kept, name=wrapper + "_" + name, world=more.pop("world", 4), newest_only=True, **more)


for name in ("mlp convnet normalised normalised_last residual embedding mlp_amp_bf16 mlp_amp_fp16 normalised_amp_bf16 mlp_accumulate "
             "mlp_gradients_kept checkpointed lstm_wide two_inputs optim_sgd_nesterov optim_adam_fused optim_clipped optim_lion "
             "model_GPT model_GPT_amp_bf16 model_LeNet model_ResNet18 model_VGG11 model_Llama_2_fp32 model_Llama_checkpointed_amp_bf16 "
             "model_Llama_checkpointed_reentrant_fp32 model_Llama_accumulate lora_bf16 lora_checkpointed_amp_bf16 qlora_nested_amp_bf16 qlora_nf4_bf16 qlora_int8_bf16").split():
    ranks(name, "ddp")
    ranks(name, "ddp_view", pytorch=dict(gradient_as_bucket_view=True))
for name in "convnet normalised_amp_bf16 mlp_accumulate model_GPT".split():
    ranks(name, "ddp_buckets", world=2, settings=dict(bucket_bytes=1 << 16))
    ranks(name, "ddp_buckets_view", world=3, settings=dict(bucket_bytes=100000), pytorch=dict(gradient_as_bucket_view=True))
ranks("model_GPT", "zero1_last", world=3, rank=2, settings=dict(zero=1))
ranks("mlp", "zero1_idle", world=7, rank=6, settings=dict(zero=1))  # it owns no parameter
for rank in 1, 6:
    ranks("model_GPT", f"fsdp_rank_{rank}", world=7, rank=rank, settings=dict(zero=3))
    ranks("normalised", f"fsdp_rank_{rank}", world=7, rank=rank, settings=dict(zero=3))
ranks("embedding", "fsdp_rank_last", world=16, rank=15, settings=dict(zero=3))
ranks("mlp_gradients_kept", "ddp_buckets_view", settings=dict(bucket_bytes=1 << 16), pytorch=dict(gradient_as_bucket_view=True))
ranks("normalised", "ddp_accumulate", accumulate=3)
ranks("normalised", "ddp_own_buffers", pytorch=dict(broadcast_buffers=False))
ranks("normalised_eval", "ddp")
for name in ("mlp convnet normalised_amp_bf16 mlp_amp_fp16 mlp_accumulate mlp_gradients_kept optim_sgd_momentum optim_sgd_nesterov optim_adam_fused "
             "optim_adam_forloop optim_adagrad optim_adagrad_fused optim_adafactor optim_clipped optim_radam model_GPT model_ResNet18 "
             "model_Llama_2_fp32 lora_bf16").split():
    ranks(name, "zero1", settings=dict(zero=1))
    ranks(name, "zero1_view", world=3, settings=dict(zero=1), pytorch=dict(gradient_as_bucket_view=True))
for name in ("mlp convnet normalised residual embedding mlp_amp_bf16 mlp_amp_fp16 normalised_amp_bf16 mlp_accumulate mlp_gradients_kept checkpointed "
             "two_inputs optim_clipped optim_sgd_momentum optim_adam_fused optim_adam_forloop optim_adagrad optim_radam optim_nadam optim_rmsprop_centered optim_adadelta "
             "optim_adamax optim_sgd_nesterov optim_adamw optim_amsgrad model_GPT model_GPT_amp_bf16 model_LeNet "
             "model_ResNet18 model_VGG11 model_Llama_2_fp32 model_Llama_checkpointed_amp_bf16 model_Llama_accumulate lora_bf16 "
             "lora_checkpointed_amp_bf16 normalised_eval model_ResNet18_eval").split():
    ranks(name, "fsdp", settings=dict(zero=3))
    ranks(name, "fsdp2", world=3, settings=dict(zero=2))
for name in "mlp model_GPT model_Llama_2_fp32 model_Llama_accumulate residual normalised embedding".split():
    ranks(name, "fsdp_low", settings=dict(zero=3), pytorch=dict(param_dtype="bfloat16", reduce_dtype="float32"))
    ranks(name, "fsdp_low2", settings=dict(zero=2), pytorch=dict(param_dtype="bfloat16"))
    ranks(name, "fsdp_low3", settings=dict(zero=3), pytorch=dict(param_dtype="bfloat16", reduce_dtype="bfloat16"))

# ---- one of the cases above with settings that are drawn: eager.py --mix

MIXED = [name for name, one in CASES.items() if one.world == 1 and not one.known and not isinstance(one.model, Experiment)
         and not name.startswith(("optim_", "masked_", "model_", "lora", "qlora"))]
DRAWN = ["SGD", "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta"]


def drawn_optimizer(r):
    kind = r.choice(DRAWN)
    may = {"SGD": dict(momentum=0.9), "Adam": dict(amsgrad=True), "AdamW": dict(amsgrad=True), "RMSprop": dict(momentum=0.9, centered=True)}
    may = {**may.get(kind, {}), "weight_decay": 0.01, "clip_norm": 1.0}
    return layer(kind, lr=0.01, **{name: value for name, value in may.items() if r.random() < 0.4})


def mixed(seed):
    """In evaluation nothing is accumulated, and the drawn networks give only the first of several outputs."""
    r = random.Random(seed)
    kept = CASES[r.choice(MIXED)]
    mode = "eval" if len(kept.loss) == 1 and r.random() < 0.15 else "train"
    pytorch = {name: value for name, value in kept.pytorch.items() if name not in ("foreach", "fused")}
    optimizer = drawn_optimizer(r)
    pytorch.update(r.choice([{}, {}, dict(foreach=False), dict(fused=True) if optimizer.kind in FUSED else {}]))
    settings = dict(kept.settings)
    for chance, name, value in (0.3, "set_to_none", False), (0.25, "channels_last", True), (0.15, "attention", r.choice(["math", "memory_efficient", "flash"])):
        if r.random() < chance:
            pytorch[name] = value
    if settings.get("checkpoint") == "marked" and r.random() < 0.5:
        pytorch["use_reentrant"] = True
    if "checkpoint" not in settings and r.random() < 0.1:
        settings["offload"] = "all"
    return replace(kept, name=f"mix_{seed}", mode=mode, pytorch=pytorch, settings=settings, optimizer=optimizer,
                   precision=r.choice(["fp32", "amp_bf16", "amp_fp16"]), accumulate=1 if mode == "eval" else r.choice([1, 1, 2, 3]))

# ---- those whose lists stand in tests/peers/eager/, for machines without PyTorch

SHORT = ("mlp convnet normalised residual embedding mlp_amp_bf16 mlp_amp_fp16 mlp_amp_fp16_disabled mlp_amp_fp16_fused_clipped mlp_fp32_scaled "
         "normalised_amp_bf16 mlp_accumulate "
         "normalised_eval checkpointed layer_Dropout layer_groupnorm layer_rmsnorm layer_attention layer_conv_transpose "
         "loss_bce_logits loss_bce_logits_weighted loss_cross_entropy_smoothed loss_l1_amp_bf16 loss_l1_eval glu_fp32 optim_sgd_nesterov optim_adafactor "
         "mlp_frozen_adagrad_foreach mlp_offload_amp_fp16 pooled_offload_last "
         "optim_clipped optim_adam_fused optim_radam_decay_forloop two_inputs variables variables_eval "
         "model_GPT model_GPT_amp_bf16 model_LeNet attention_fp32_train "
         "attention_amp_bf16_math_train attention_amp_bf16_odd_train multihead_math_amp_bf16 multihead_weights_amp_bf16 "
         "multihead_weights_causal_fp32 model_Llama_checkpointed_amp_bf16 masked_bias_amp_bf16_train masked_window_amp_bf16_train "
         "masked_softcap_all_amp_fp16_train scaled_rows windows lora_amp_bf16 lora_checkpointed_bf16 "
         "lora_dora_checkpointed_bf16 "
         "optim_paged_adam8bit optim_paged_adamw8bit_small "
         "ddp_normalised_amp_bf16 ddp_view_mlp_accumulate ddp_buckets_model_GPT ddp_buckets_view_mlp_gradients_kept ddp_lstm_wide "
         "ddp_model_Llama_checkpointed_amp_bf16 ddp_accumulate_normalised zero1_view_convnet zero1_last_model_GPT "
         "fsdp_model_GPT fsdp2_mlp_accumulate fsdp_rank_6_normalised fsdp_model_Llama_checkpointed_amp_bf16 fsdp_low_residual "
         "fsdp_low_model_Llama_2_fp32 fsdp_normalised_eval").split()
SHORT_OLDER = ("layer_rmsnorm_amp_bf16 attention_fp32_train attention_amp_bf16_train multihead_math_amp_bf16").split()
