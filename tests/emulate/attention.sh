# Trainings on the emulated GPU with attention by cuDNN, as a file of picks has it, beside the same by own kernels: predicted bytes,
# losses, and what a recorded step has of nodes.
. tests/tap.sh
export MEMTIDE_CUDA=$(cd "$ROOT" && realpath "${BUILD:-build}/emulate/memtide_cuda.so") EMULATE_NODES="$WORK/nodes.txt"
unset CUDA_VISIBLE_DEVICES

cat >net.lua <<'E'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local nets = {
  grouped = function()
    return mt.models.Llama{vocab_size = 20, hidden_size = 32, intermediate_size = 64, num_hidden_layers = 1,
      num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 8}
  end,
  dropout = function() return mt.models.GPT{block_size = 8, vocab_size = 20, n_layer = 1, n_head = 2, n_embd = 16, dropout = 0.25} end,
}
return mt.experiment{name = "attention", sweep = {{"net", {"grouped", "dropout"}}, {"checkpoint", {"none", "all"}}},
  precision = "amp_bf16", model = function(s) return nets[s.net]() end, input = {8}, batch = 2, steps = 4, warmup = 1,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.05}}
E

# The engines of cuDNN's stand-in: 0 needs 1024 bytes of its own, 1 none. Before that comes dropout's mask, and a number for each query.
pick() { printf 'emulated CUDA device\t91900\t4194304\t%s scale=0.353553385 p=%s window=0 cap=0 positions=0\tcudnn\t%s\t%s\t1.5\n' "$@"; }
{
    pick "attention q=2,8,32:bf16 k=2,8,16:bf16 v=2,8,16:bf16 y=2,8,32:bf16 lse=1 heads=4 kv_heads=2 causal=1 batch_first=1" 0 0 1024
    pick "attention_dx q=2,8,32:bf16 k=2,8,16:bf16 v=2,8,16:bf16 y=2,8,32:bf16 dy:bf16 dq:bf16 dbias=0 heads=4 kv_heads=2 causal=1 batch_first=1" 0 1 256
    pick "attention q=2,8,48:bf16 y=2,8,16:bf16 lse=1 heads=2 kv_heads=2 causal=1 batch_first=1" 0.25 1 512
    pick "attention_dx q=2,8,48:bf16 y=2,8,16:bf16 dy:bf16 dq:bf16 dbias=0 heads=2 kv_heads=2 causal=1 batch_first=1" 0.25 0 1792
} >picks.txt

# The columns that are named, of every row of a CSV file
columns() { # file, name...
    file=$1
    shift
    awk -F, -v names="$*" 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; n = split(names, name, " "); next }
        { line = ""; for (i = 1; i <= n; i++) line = line " " $(at[name[i]]); print line }' "$file"
}

train() { # file of picks, CSV; prints the nodes of each row's step
    rm -f nodes.txt
    MEMTIDE_PICKS=$1 memtide run net.lua --device cuda:0 --csv "$2" --in-process --quiet
    [ "$status" = 0 ] || echo "# $out$err"
    is "$(columns "$2" status | sort | uniq -c | tr -s ' ')" " 4 ok" "$2: every row needs what was predicted"
    nodes=$(paste -sd' ' nodes.txt)
}
train none.txt own.csv
own=$nodes
train picks.txt cudnn.csv
# Own kernels are one launch, two of the gradient; a graph is one, and a mask one more. With all activations computed again there are
# two forward passes.
is "$(echo "$own $nodes" | awk '{ print $5 - $1, $6 - $2, $7 - $3, $8 - $4 }')" "-1 -1 1 2" "a step's nodes change by what cuDNN takes over"
columns own.csv loss_last >own.txt
columns cudnn.csv loss_last | paste -d' ' own.txt - >losses.txt
is "$(awk '{ d = $1 - $2; if (d * d < 1e-6 * $1 * $1) n++; if (d != 0) other++ } END { print n, (other > 0) }' losses.txt)" "4 1" \
    "the losses are those of own kernels, but for roundings"
train picks.txt again.csv
is "$(columns again.csv loss_first loss_last)" "$(columns cudnn.csv loss_first loss_last)" "and the same each time"
finish
