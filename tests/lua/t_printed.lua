-- Layers print as in PyTorch 2.6: the lines are what print(layer) gave there. An RNN tells its nonlinearity, too.
local tap = dofile "tests/tap.lua"
local nn = require "memtide".nn

for _, pair in ipairs{
  {nn.Conv2d(3, 64, 3, {padding = 1}), "Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))"},
  {nn.Conv2d(4, 8, {3, 5}, {stride = 2, dilation = 2, groups = 2, bias = false}),
    "Conv2d(4, 8, kernel_size=(3, 5), stride=(2, 2), dilation=(2, 2), groups=2, bias=False)"},
  {nn.Conv2d(4, 8, 3, {padding = "same"}), "Conv2d(4, 8, kernel_size=(3, 3), stride=(1, 1), padding=same)"},
  {nn.ConvTranspose2d(8, 4, 4, 2, 1, {output_padding = 1, bias = false}), "ConvTranspose2d(8, 4, " ..
    "kernel_size=(4, 4), stride=(2, 2), padding=(1, 1), output_padding=(1, 1), bias=False)"},
  {nn.Linear(8, 4), "Linear(in_features=8, out_features=4, bias=True)"},
  {nn.Linear(8, 4, {bias = false}), "Linear(in_features=8, out_features=4, bias=False)"},
  {nn.ReLU(), "ReLU()"}, {nn.ReLU{inplace = true}, "ReLU(inplace=True)"},
  {nn.LeakyReLU(0.2), "LeakyReLU(negative_slope=0.2)"},
  {nn.LeakyReLU{inplace = true}, "LeakyReLU(negative_slope=0.01, inplace=True)"},
  {nn.Hardtanh(-2, 2.5), "Hardtanh(min_val=-2.0, max_val=2.5)"}, {nn.ReLU6{inplace = true}, "ReLU6(inplace=True)"},
  {nn.Hardtanh{inplace = true}, "Hardtanh(min_val=-1.0, max_val=1.0, inplace=True)"}, {nn.Mish(), "Mish()"},
  {nn.Conv1d(3, 4, 3, {padding = "same"}),
    "Conv1d(3, 4, kernel_size=(3,), stride=(1,), padding=same)"},
  {nn.ConvTranspose1d(3, 4, 3, 2, 1, 1),
    "ConvTranspose1d(3, 4, kernel_size=(3,), stride=(2,), padding=(1,), output_padding=(1,))"},
  {nn.MaxPool1d(2), "MaxPool1d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)"},
  {nn.AvgPool1d(2), "AvgPool1d(kernel_size=(2,), stride=(2,), padding=(0,))"},
  {nn.AdaptiveAvgPool1d(1), "AdaptiveAvgPool1d(output_size=1)"},
  {nn.InstanceNorm2d(3, {affine = true}),
    "InstanceNorm2d(3, eps=1e-05, momentum=0.1, affine=True, track_running_stats=False)"},
  {nn.RMSNorm(5), "RMSNorm((5,), eps=None, elementwise_affine=True)"},
  {nn.RMSNorm(5, 1e-3, false), "RMSNorm((5,), eps=0.001, elementwise_affine=False)"},
  {nn.Sigmoid(), "Sigmoid()"}, {nn.SiLU{inplace = true}, "SiLU(inplace=True)"}, {nn.ELU(), "ELU(alpha=1.0)"},
  {nn.CELU(0.5, {inplace = true}), "CELU(alpha=0.5, inplace=True)"},
  {nn.GELU(), "GELU(approximate='none')"}, {nn.GELU "tanh", "GELU(approximate='tanh')"},
  {nn.PReLU(8), "PReLU(num_parameters=8)"},
  {nn.Softmax(1), "Softmax(dim=1)"}, {nn.GLU(), "GLU(dim=-1)"}, {nn.LogSoftmax(-1), "LogSoftmax(dim=-1)"},
  {nn.BatchNorm1d(4), "BatchNorm1d(4, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)"},
  {nn.BatchNorm2d(4, {eps = 1e-3, momentum = "none", affine = false, track_running_stats = false}),
    "BatchNorm2d(4, eps=0.001, momentum=None, affine=False, track_running_stats=False)"},
  {nn.LayerNorm(24), "LayerNorm((24,), eps=1e-05, elementwise_affine=True)"},
  {nn.GroupNorm(2, 8), "GroupNorm(2, 8, eps=1e-05, affine=True)"},
  {nn.Embedding(32, 24), "Embedding(32, 24)"},
  {nn.Embedding(32, 24, {padding_idx = 0}), "Embedding(32, 24, padding_idx=0)"},
  {nn.Upsample{scale_factor = 2}, "Upsample(scale_factor=2.0, mode='nearest')"},
  {nn.Upsample{size = {4, 6}, mode = "bilinear"}, "Upsample(size=(4, 6), mode='bilinear')"},
  {nn.MaxPool2d(2), "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)"},
  {nn.MaxPool2d({3, 2}, {stride = 2, padding = 1, ceil_mode = true}),
    "MaxPool2d(kernel_size=(3, 2), stride=2, padding=1, dilation=1, ceil_mode=True)"},
  {nn.AvgPool2d(3, 2, 1), "AvgPool2d(kernel_size=3, stride=2, padding=1)"},
  {nn.AdaptiveAvgPool2d(1), "AdaptiveAvgPool2d(output_size=1)"},
  {nn.AdaptiveAvgPool2d{2, 3}, "AdaptiveAvgPool2d(output_size=(2, 3))"},
  {nn.Dropout(), "Dropout(p=0.5, inplace=False)"},
  {nn.Dropout2d(0.25, {inplace = true}), "Dropout2d(p=0.25, inplace=True)"},
  {nn.StochasticDepth(0.2, "row"), "StochasticDepth(p=0.2, mode=row)"}, -- torchvision has no quotes here
  {nn.Flatten(), "Flatten(start_dim=1, end_dim=-1)"}, {nn.SELU(), "SELU()"},
  {nn.ZeroPad2d(1), "ZeroPad2d((1, 1, 1, 1))"},
  {nn.Unflatten(1, {32, 3, -1}), "Unflatten(dim=1, unflattened_size=(32, 3, -1))"},
  {nn.Identity(), "Identity()"},
  {nn.RNN(8, 16, {nonlinearity = "relu"}), "RNN(8, 16, nonlinearity=relu)"},
  {nn.LSTM(8, 16, 2, {batch_first = true, dropout = 0.1, bidirectional = true}),
    "LSTM(8, 16, num_layers=2, batch_first=True, dropout=0.1, bidirectional=True)"},
  {nn.GRU(8, 16, {bias = false}), "GRU(8, 16, bias=False)"},
  {nn.CrossEntropyLoss(), "CrossEntropyLoss()"}, {nn.MSELoss(), "MSELoss()"},
} do
  tap.is(tostring(pair[1]), pair[2], pair[2])
end
tap.is(tostring(nn.Sequential{nn.Linear(2, 3), nn.Residual{nn.Sequential{nn.Tanh()}}}), [[
Sequential(
  (0): Linear(in_features=2, out_features=3, bias=True)
  (1): Residual(
    (0): Sequential(
      (0): Tanh()
    )
  )
)]], "a tree prints indented")
tap.done()
