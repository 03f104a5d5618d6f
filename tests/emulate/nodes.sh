# Nodes of a recorded step: kernels, libraries' calls and copies that a GPU starts for it, which bounds how short it can be. They do
# not depend on sizes, as long as these are small.
. tests/tap.sh
export MEMTIDE_CUDA=$(cd "$ROOT" && realpath "${BUILD:-build}/emulate/memtide_cuda.so") EMULATE_NODES="$WORK/nodes.txt"
unset CUDA_VISIBLE_DEVICES

cat >net.lua <<'E'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local conv = nn.Sequential{nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 10)}
local normed = nn.Sequential{nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)}
local nets = {
  ["the article's"] = {model = conv, input = {3, 8, 8}, classes = 10},
  ["with batch normalisation"] = {model = normed, input = {3, 8, 8}, classes = 10},
  ["GPT of two blocks"] = {model = mt.models.GPT{block_size = 4, vocab_size = 10, n_layer = 2, n_head = 2, n_embd = 8}, input = {4}},
  LSTM = {model = nn.Sequential{nn.LSTM(8, 8, {batch_first = true}), nn.Flatten(), nn.Linear(32, 10)}, input = {4, 8}, classes = 10},
}
local n = nets[os.getenv "NET"]
return mt.experiment{name = "nodes", model = n.model, input = n.input, classes = n.classes, batch = 2, steps = 3, warmup = 0,
  precision = os.getenv "PRECISION", loss = nn.CrossEntropyLoss(),
  optimizer = optim.Adam{lr = 1e-3, clip_norm = tonumber(os.getenv "CLIP")}}
E

nodes() { # network, nodes in fp32, in amp_bf16; how it is different
    found=
    for precision in fp32 amp_bf16; do
        rm -f nodes.txt x.csv
        NET=$1 PRECISION=$precision memtide run net.lua --device cuda:0 --csv x.csv --in-process --quiet
        [ "$status" = 0 ] || echo "# $out$err"
        found="$found$(paste -sd+ nodes.txt) "
    done
    is "$found" "$2 $3 " "$1${4:+, $4}: a step has $2 nodes in fp32, $3 in amp_bf16"
}

unset CLIP
nodes "the article's" 14 20
nodes "with batch normalisation" 19 23
nodes "GPT of two blocks" 74 91
nodes LSTM 26 30
export CLIP=1
nodes "GPT of two blocks" 76 93 "gradients clipped by their norm"
finish
