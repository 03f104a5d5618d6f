# memtide import of a constructor in Python: the script of a description that is committed; with a Python that has torch
# also descriptions, weights, a step in both, and what is refused.
. tests/tap.sh
HERE=$ROOT/tests/cli/import

# ---- from a description, without Python

memtide import --description "$HERE/net.json" -o net.lua
is "$status" 0 "a description becomes a script"
has "$err" "net: 1053 parameters; batch=4 precision=fp32 needs" "whose parameters and memory are told"
script=$(cat net.lua)
is "$(grep -c '^local function Block' net.lua)" 1 "equal blocks are one function"
has "$script" "blocks = nn.ModuleList(times(3, function() return Block() end))," "... called in a list of the module's name"
has "$script" "stem = nn.Sequential{nn.Conv2d(3, 8, 2, {stride = 2}), nn.BatchNorm2d(8), nn.ReLU{inplace = true}}," \
    "nn.Sequential stays one"
has "$script" "      for i = 1, 3 do
        x = self.blocks[i](x)
      end" "calls of all layers of a list are a loop"
memtide run net.lua --csv net.csv
is "$status $(cut -d, -f1 net.csv | wc -l)" "0 5" "the sweep of the script runs"
memtide predict net.lua --set framework=pytorch --set precision=fp32 -q --json
has "$out" '"status":"predicted"' "and is predicted as PyTorch's step"
memtide import --description "$HERE/two.json" -o two.lua
has "$(cat two.lua)" "forward = function(self, input_ids, pixel_values)" "two inputs are forward's arguments"
has "$(cat two.lua)" "input = {input_ids = {7, tokens = 50}, pixel_values = {3, 8, 8}}, classes = 5" "... and inputs of the experiment"
memtide run two.lua --csv two.csv -q
is "$status $(cut -d, -f1 two.csv | wc -l)" "0 5" "... which runs"
memtide import --description "$HERE/windows.json" -o windows.lua
is "$status" 0 "a description with constants"
has "$(cat windows.lua)" "constant0 = {{4, 3, 1, 0}, {5, 4, 2, 1}, {7, 6, 4, 3}, {8, 7, 5, 4}}" "... whose numbers are lists"
has "$(cat windows.lua)" "self.table[self.index]:view({16, 2})" "... and choose rows of a table"
memtide run windows.lua --csv windows.csv -q
is "$status $(cut -d, -f1 windows.csv | wc -l)" "0 5" "... which runs"
memtide predict windows.lua --set framework=pytorch --set precision=fp32 -q --json
has "$out" '"status":"predicted"' "... and is predicted as PyTorch's step"
memtide import --description "$HERE/gated.json" -o gated.lua
has "$status $(cat gated.lua)" "gate = nn.GLU(1)," "nn.GLU has its dimension"
has "$(cat gated.lua)" "F.glu(self.fc(" "... and F.glu is a function"
memtide predict gated.lua --set framework=pytorch --set precision=fp32 -q --json
has "$out" '"status":"predicted"' "... which PyTorch's step has"
memtide import --description "$HERE/tuned.json" -o tuned.lua
has "$status $err" "0 memtide: tuned (616 frozen): 949 parameters" "what PyTorch has frozen stays so"
is "$(grep -c '^ *nn.Frozen(Block(nn.LayerNorm(8))),$' tuned.lua)" 2 "... modules as a whole"
has "$(cat tuned.lua)" "      Block(nn.Frozen(nn.LayerNorm(8)))," "... or a layer of one"
has "$(cat tuned.lua)" "scale = nn.Frozen(nn.Parameter(" "... or a parameter"
has "$(cat tuned.lua)" "shift = nn.Parameter(" "... and no other"
memtide import --description "$HERE/again.json" -o again.lua
is "$status" 0 "a method whose variable has its caller's name"
has "$(cat again.lua)" "      x = self.fc(x)
      local v1 = x
      x = src
      x = src + self.drop(v1)" "... does not lose what it held"
memtide import --description "$HERE/circular.json"
has "$status $err" "69 memtide: $HERE/circular.json: memtide cannot say everything that it calls:
  models.py:220: Conv2d: padding_mode = \"circular\", once" "an option that a layer has not is named"
memtide import --description "$HERE/masked.json"
has "$status $err" "69 memtide: $HERE/masked.json: memtide cannot say everything that it calls:
  models.py:253: torch.nn.MultiheadAttention called with attn_mask, once" "... and a mask that a layer is called with"
memtide import --description "$HERE/shuffled.json" -o shuffled.lua
has "$status $(cat shuffled.lua)" "x = x:channel_shuffle(3)" "groups of channels that change places are shuffled as nn.ChannelShuffle does"
memtide import --description "$HERE/flagged.json"
has "$status $err" "69 memtide: $HERE/flagged.json: memtide cannot say everything that it calls:
  models.py:316: imported_model.Recalled.Part, which computes something else when it is called again, once" \
    "a module that computes something else when it is called again"
memtide import --description "$HERE/evaluated.json" -o evaluated.lua
differs="in evaluation PyTorch computes something else than this script: models.py:410: torch.nn.functional.dropout drops"
has "$status $err" "0 memtide: $differs" "a function that drops in evaluation, too, is told"
has "$(cat evaluated.lua)" "-- $differs" "... and stands in the script"
for _ in 1 2 3 4 5 6 7 8 9 10; do
    memtide import --description "$HERE/sides.json"
    printf '%s\n' "$out" | grep '^local function' | tr '\n' ' '
done >order
is "$(sed 's/local function //g' order)" "$(for _ in 1 2 3 4 5 6 7 8 9 10; do printf 'B() A() Sides() '; done)" "functions stand in the same order each time"
for one in gpt hidden vit llama inside; do
    memtide import --description "$HERE/$one.json" -o "$one.lua"
    is "$status" 0 "a transformer that is written by hand ($one)"
    memtide run "$one.lua" --csv "$one.csv" -q
    is "$status $(cut -d, -f1 "$one.csv" | wc -l)" "0 5" "... which runs"
    memtide predict "$one.lua" --set framework=pytorch --set precision=fp32 -q --json
    has "$out" '"status":"predicted"' "... and is predicted as PyTorch's step"
done
# peaks of PyTorch's own step on a device without memory, as tests/peers/import.py has them
for one in "gpt 22832640" "hidden 23952896" "vit 20521984" "llama 18233344"; do
    memtide predict "${one% *}.lua" --set framework=pytorch --set precision=fp32 --set batch=64 -q --json
    has "$out" "\"max_memory_allocated\":${one#* }," "PyTorch's peak (${one% *})"
done
for one in "gpt SplitBackward0|aten::cat" "vit UnbindBackward0|aten::stack" "hidden aten::eq" "llama aten::clone layers.0.attention.scaleddotproductattention"; do
    memtide dump "${one%% *}.lua" --set framework=pytorch --set precision=fp32 --set batch=4
    has "$out" "${one#* }" "... and its ops: ${one#* }"
done
has "$(cat gpt.lua)" "transformer = nn.ModuleDict{
      wte = wte,
      wpe = nn.Embedding(16, 32)," "nn.ModuleDict is a table of children"
has "$(cat gpt.lua)" "  local wte = nn.Embedding(50, 32)
  return" "a shared layer is a variable"
has "$(cat gpt.lua)" "lm_head = nn.Linear(32, 50, {bias = false, tied = wte})," "... whose weight another one takes"
has "$(cat gpt.lua)" "local pos_emb = self.transformer.wpe(nn.arange(16))" "an embedding of positions"
has "$(cat gpt.lua)" "F.scaled_dot_product_attention(q, k, v, {num_heads = 4, is_causal = true, dropout_p = 0.1})" "attention of heads side by side"
has "$(cat gpt.lua)" "c_attn:narrow(2, 32, 32, {split = {32, 32, 32}})" "... which one call has parted"
has "$(cat hidden.lua)" "bias = nn.Mask(16, 16, 1, true, {made = \"buffer\", of = {20, 20}})," "a mask in a buffer"
has "$(cat hidden.lua)" "att = att:masked_fill(self.bias, -math.huge)" "... which hides later steps"
has "$(cat vit.lua)" ":select(1, 2, {unbind = 3})" "queries, keys and values of one unbind"
has "$(cat llama.lua)" "local cos = self.cos:narrow(0, 0, 4)" "a part of a buffer"
has "$(cat llama.lua)" "weight = nn.Parameter({32}, {init = 1})," "a weight of a norm starts as ones"
has "$(cat llama.lua)" "enable_gqa = true, repeats = true})" "keys' heads that are repeated"
has "$(cat llama.lua)" "x1 = nil" "a function's variable that ends before forward does"
has "$(cat inside.lua)" "decoder = Decoder(embed)," "a layer that a function inside takes a weight of is given to it"
memtide import --description "$HERE/unknown.json"
is "$status" 69 "what memtide cannot say is an error"
has "$err" "models.py:65: torch.cumsum, 3 times; gives 12 numbers of each sample" "... with its line, how often, and how large it is"
is "$out" "" "... and no script"

# ---- bad input

head -c 500 "$HERE/net.json" >cut.json
memtide import --description cut.json
is "$status" 65 "a description that is cut off"
has "$err" "cut.json" "... is named"
memtide import --description nowhere.json
is "$status" 66 "a description that is not there"
memtide import --description "$HERE/net.json" --check
has "$status $err" "2 memtide: import: --check: expected MODULE:NAME" "--check needs a model"
memtide import models.py:Net --input 3,x
has "$status $err" '2 memtide: --input: expected the shape of one sample such as 3,224,224' "a broken shape"
memtide import models.py:Net --python nowhere
has "$status $err" "66 memtide: there is no program nowhere" "a Python that is not there"
memtide import models.py:Net extra
has "$status $err" "2 memtide: import: expected one MODULE:NAME or one folder" "two models"
mkdir broken other
echo '{"model_type": "llama", ' >broken/config.json
memtide import broken
is "$status" 65 "a config.json that is cut off"
has "$err" "broken/config.json" "... is named"
echo '{"model_type": "mamba"}' >other/config.json
memtide import other
has "$err" 'mamba' "a family that is not known is named"

# ---- with Python

PYTHON=${PYTHON:-python3}
with_torch=0
"$PYTHON" -c 'import torch' 2>/dev/null || with_torch=1

# MESSAGE: where there is torch, --check has found PyTorch's gradients.
has_gradients() {
    [ "$with_torch" = 0 ] || return 0
    is "$(printf '%s\n' "$err" | sed -n 's/.*gradients: norm .*difference \([0-9.e-]*\) of it$/\1/p' | awk '{ print $1 < 1e-4 }')" 1 "$1"
}

python_says() { # words of the command, status, part of the message, what
    if [ $with_torch = 1 ]; then result 0 "$4 # SKIP $PYTHON has no torch"; return; fi
    # shellcheck disable=SC2086 # words
    memtide import $1 --python "$PYTHON"
    has "$status $err" "$2 memtide: $3" "$4"
}

cp "$HERE/models.py" .
python_says "models.py:Net --input 3,8,8 -o again.lua --weights --check" 0 "" "a constructor becomes a script"
if [ $with_torch = 0 ]; then
    is "$(sed 's/ weights = "again.safetensors",//; /^--/d; s/"Net"/"net"/g' again.lua)" "$(sed /^--/d net.lua)" \
        "the same as of its description"
    is "$(printf '%s\n' "$err" | sed -n 's/.*loss: .*difference \([0-9.e-]*\)$/\1/p' | awk '{ print $1 < 1e-5 }')" 1 \
        "a step in both has the same loss"
    has_gradients "... and the same gradients"
    memtide predict again.lua -q
    is "$status" 0 "the script names its weights, which fit"
fi
python_says "models.py:Two --input 7:int64:50 --input 3,8,8 -o again.lua --check" 0 "" "a model of two inputs"
if [ $with_torch = 0 ]; then
    is "$(sed '/^--/d; s/"Two"/"two"/g' again.lua)" "$(sed /^--/d two.lua)" "the same as of its description"
    is "$(printf '%s\n' "$err" | sed -n 's/.*loss: .*difference \([0-9.e-]*\)$/\1/p' | awk '{ print $1 < 1e-5 }')" 1 \
        "a step in both has the same loss"
fi
python_says "models.py:Shuffled --input 3,8,8 -o shuffled.lua --check" 0 "" "shuffled channels"
has_gradients "... have PyTorch's gradients"
python_says "models.py:Windows --input 4,4,8 -o windows.lua --weights --check" 0 "" "windows with a bias and a mask"
has_gradients "... have PyTorch's gradients"
python_says "models.py:Gated --input 3,8 -o gated.lua --check" 0 "" "gates"
has_gradients "... have PyTorch's gradients"
python_says "models.py:Tuned --input 3,8 -o tuned.lua --weights --check" 0 "" "frozen parts, and a function that drops"
has_gradients "... have PyTorch's gradients"
python_says "models.py:Again --input 4 -o again.lua --weights --check" 0 "" "a method's variable"
has_gradients "... has PyTorch's gradients"
apart="models.py:Apart --input 4 --args how"
python_says "$apart='frozen,without-gradients'" 0 "" "a frozen layer without gradients"
python_says "$apart='without-gradients'" 69 "models.py:Apart: memtide cannot say everything that it calls:
  $PWD/models.py:193: torch.nn.Linear of what has a gradient, under torch.no_grad(), once" "a layer whose gradients no_grad ends"
python_says "$apart='without-bias'" 69 "models.py:Apart: memtide cannot say everything that it calls:
  $PWD/models.py:191: torch.nn.functional.linear: with parameters of no layer that does the same, once" "a layer's weight without its bias"
python_says "$apart='a-frozen-bias'" 69 "models.py:Apart: memtide cannot say everything that it calls:
  $PWD/models.py:193: torch.nn.Linear, of which some parameters are frozen and others are not, once" "a layer that is frozen in part"
called="models.py:Called --input 4,8 --check -o called.lua --args how"
says="69 models.py:Called: memtide cannot say everything that it calls:
  $PWD/models.py"
python_says "$called='mask'" ${says%% *} "${says#* }:253: torch.nn.MultiheadAttention called with attn_mask, once" "attention with a mask"
python_says "$called='positional'" ${says%% *} "${says#* }:255: torch.nn.MultiheadAttention called with attn_mask, once" "... that stands after other arguments, on no device"
python_says "$called='named'" 0 "" "attention that is called by names"
has_gradients "... has PyTorch's gradients"
[ $with_torch = 1 ] || is "$(grep -c 'need_weights' called.lua)" 0 "... without weights"
python_says "$called='weights'" 0 "" "... and with weights"
[ $with_torch = 1 ] || has "$(cat called.lua)" "need_weights = true" "... which PyTorch's step has"
python_says "$called='conv'" 0 "" "a convolution's weight in a function that does the same"
has_gradients "... has PyTorch's gradients"
python_says "$called='stride'" ${says%% *} "${says#* }:259: torch.nn.functional.conv1d: with parameters of no layer that does the same, once" "... with another dilation"
python_says "$called='eps'" ${says%% *} "${says#* }:263: torch.nn.functional.layer_norm: with parameters of no layer that does the same, once" "... a normalisation with another eps"
python_says "$called='size'" ${says%% *} "${says#* }:265: torch.nn.ConvTranspose1d called with output_size, once" "a transposed convolution that is told its output's size"
python_says "$called='whole'" ${says%% *} "${says#* }:267: torch.Tensor.to: torch.int64, once" "numbers that are made whole"
altered="models.py:Altered --input 6 --check -o altered.lua --args how"
python_says "$altered='hook'" 0 "" "a hook that changes a layer's output"
has_gradients "... has PyTorch's gradients"
python_says "$altered='own'" 0 "" "a layer with a forward of its own"
has_gradients "... has PyTorch's gradients"
python_says "$altered='frozen'" 69 "models.py:Altered: memtide cannot say everything that it calls:
  $PWD/models.py:292: BatchNorm1d: training = False, once" "a batch normalisation that evaluates while the others train"
resized="models.py:Resized --input 3,8,8 --check -o resized.lua --args"
python_says "$resized scale_factor=1.6,recompute_scale_factor=True" 0 "" "an image of another size, scaled by its sizes"
has_gradients "... has PyTorch's gradients"
[ $with_torch = 1 ] || has "$(cat resized.lua)" "loss = nn.MSELoss()" "... whose one number is no class"
python_says "$resized size=5,antialias=True" 69 "models.py:Resized: memtide cannot say everything that it calls:
  $PWD/models.py:303: torch.nn.functional.interpolate: Upsample: antialias = true, once" "... without aliases"
recalled="models.py:Recalled --input 4,6 --check -o recalled.lua --args how"
says="69 models.py:Recalled: memtide cannot say everything that it calls:
  $PWD/models.py"
python_says "$recalled='flag'" ${says%% *} "${says#* }:316: imported_model.Recalled.Part, which computes something else when it is called again, once" \
    "a module that computes something else when it is called again"
python_says "$recalled='sizes'" 0 "" "... that is given another size"
has_gradients "... has PyTorch's gradients"
python_says "$recalled='names'" 0 "" "... whose arguments have names in another order than its forward"
has_gradients "... has PyTorch's gradients"
for how in layer function child part; do
    python_says "models.py:InPlace --input 6 --args how='$how'" 69 "models.py:InPlace: memtide cannot say everything that it calls:
  $PWD/models.py:3" "what is written in place, and read under another name ($how)"
    [ $with_torch = 1 ] || has "$err" "a value that was written to through another one, or by a child,, once" "... is named"
done
python_says "models.py:InPlace --input 6 --check -o inplace.lua --args how='result'" 0 "" "... or under its own"
has_gradients "... has PyTorch's gradients"
hooked="models.py:Hooked --input 6 --args how"
python_says "$hooked='parameter'" 65 "the parameter fc1.weight has a hook (register_hook), which is not imported: expected the model without it (\
$PWD/models.py:" "a parameter's hook"
python_says "$hooked='accumulated'" 65 "the parameter fc1.weight has a hook (register_post_accumulate_grad_hook)" "... after its gradient is there"
python_says "$hooked='module'" 65 "the module fc1 (torch.nn.Linear) has a hook (register_full_backward_hook)" "a module's hook"
python_says "$hooked='before'" 65 "the module fc1 (torch.nn.Linear) has a hook (register_full_backward_pre_hook)" "... before its gradient"
python_says "$hooked='value'" 65 "torch.Tensor.register_hook: hooks are not imported" "a value's hook"
python_says "$hooked='kept'" 65 "torch.Tensor.retain_grad: hooks are not imported" "a value that keeps its gradient"
python_says "$hooked='late'" 65 "torch.Tensor.register_hook: hooks are not imported" "... of a parameter that forward registers"
differs="in evaluation PyTorch computes something else than this script: "
evaluated="models.py:Evaluated --input 6 --check -o evaluated.lua --args how"
for how in "always $PWD/models.py:410: torch.nn.functional.dropout drops" "layer the module drop (torch.nn.Dropout) is as in training" \
    "branch $PWD/models.py:416: imported_model.Evaluated makes other calls"; do
    python_says "$evaluated='${how%% *}'" 0 "$differs${how#* }" "evaluation that is not the script's (${how%% *})"
    [ $with_torch = 1 ] || has "$(cat evaluated.lua)" "-- $differs${how#* }" "... is told in the script, too"
done
python_says "$evaluated='never'" 0 "" "evaluation that is the script's"
[ $with_torch = 1 ] || is "$(printf '%s\n' "$err" | grep -c 'in evaluation')" 0 "... of which nothing is told"
has_gradients "... has PyTorch's gradients"
python_says "$evaluated='outputs'" 0 "${differs}its step in PyTorch gives 1 of 2 outputs" "evaluation with fewer outputs"
[ $with_torch = 1 ] || is "$(printf '%s\n' "$err" | grep -c 'in evaluation')" 1 "... of which nothing else is told"
has_gradients "... has PyTorch's gradients"
python_says "$evaluated='kept'" 0 "PyTorch keeps a value of forward in features until the next step, this script does not" "a value that a module keeps"
has_gradients "... has PyTorch's gradients"
python_says "models.py:Named --input 6 --check -o named.lua" 0 "" "modules whose names are words of Lua"
has_gradients "... have PyTorch's gradients"
python_says "models.py:Started --input 6 --check -o started.lua" 0 "" "parameters that start as one number"
if [ $with_torch = 0 ]; then
    has_gradients "... have PyTorch's gradients"
    for one in "ones = nn.Parameter({6}, {init = 1})" "zeros = nn.Parameter({6})" "full = nn.Parameter({6}, {init = 0.5})" \
        "constant = nn.Parameter({6}, {init = 0.25})" "scaled = nn.Parameter({6}, {init = 1e-06})" \
        "drawn = nn.Parameter({6}, {init = \"normal\", std = 0.02})" "part = nn.Parameter({6}, {init = \"normal\", std = 0.02})"; do
        has "$(cat started.lua)" "    $one," "... start as it, and no other: ${one%% *}"
    done
fi
odd="models.py:Odd --input 6 -o odd.lua --args how"
python_says "$odd='lazy'" 65 "the parameter fc.weight has no shape yet" "a lazy layer"
python_says "$odd='half'" 65 "the parameter fc.weight is torch.bfloat16: expected torch.float32" "parameters of 16 bits"
python_says "$odd='scalar'" 69 "models.py:Odd: memtide cannot say everything that it calls:
  $PWD/models.py:452: imported_model.Odd has a parameter scale without dimensions" "a parameter without dimensions"
python_says "$odd='flat'" 69 "models.py:Odd: memtide cannot say everything that it calls:" "... and an output"
python_says "models.py:Written --input 4" 69 "models.py:Written: memtide cannot say everything that it calls:
  $PWD/models.py:139: a value that was written to through another one" "what is written through a view"
python_says "models.py:Branch --input 4" 65 "forward asks for a tensor's numbers (a branch on data?)" "a branch on data"
python_says "models.py:Pair --input 4" 65 "TypeError: " "a forward that wants two values"
python_says "models.py:broken" 65 "the constructor raises ValueError: no such size (" "a constructor that fails"
python_says "models.py:number" 65 "the constructor gives a int, not a torch.nn.Module" "a constructor of something else"
python_says "models.py:nothing" 65 "models.py has no nothing; it has " "a name that is not there"
python_says "nowhere.models:Net" 65 "cannot import nowhere.models: ModuleNotFoundError" "a module that is not there"
python_says "models.py:Net --args depth=" 2 '--args: expected arguments such as num_classes=10, found "depth="' "broken arguments"

cp "$HERE/hand_written.py" .
written="hand_written.py"
for one in "GPT --args depth=2 --input 16:int64:50" "GPT --args depth=1,how='buffer',context=20 --input 16:int64:50" \
    "GPT --args depth=1,how='made',tied=False --input 16:int64:50" "ViT --input 3,16,16" "ViT --args how='products',pool='last' --input 3,16,16" \
    "Llama --input 12:int64:50" "Llama --args how='repeated' --input 16:int64:50" "Inside --input 6:int64:20"; do
    python_says "$written:$one --check -o written.lua" 0 "" "by hand: $one"
    has_gradients "... has PyTorch's gradients"
done
refused="69"
python_says "$written:GPT --args last=True --input 16:int64:50" $refused "$written:GPT: memtide cannot say everything that it calls:
  $PWD/$written:117: torch.Tensor.__getitem__: an index that is a list or a tensor (expected x[:, -1:] for x[:, [-1]]), once" "an index that is a list"
python_says "$written:GPT --args how='added' --input 16:int64:50" $refused "$written:GPT: memtide cannot say everything that it calls:
  $PWD/$written:50: a constant with infinities (expected scores.masked_fill(mask, float(\"-inf\")) for scores + mask), 3 times" "a mask that is added"
python_says "$written:Inside --args how='embedding' --input 6:int64:20" $refused "$written:Inside: memtide cannot say everything that it calls:
  $PWD/$written:151: other.weight is decoder.embed.weight, a parameter of two modules" "a weight of two embeddings"
python_says "$written:Words --input 6:int64:20" $refused "$written:Words: memtide cannot say everything that it calls:
  $PWD/$written:319: torch.nn.functional.linear: with parameters of no layer that does the same (expected self.head = nn.Linear(..., bias=False) \
with self.head.weight = that of the embedding), once" "a product with the weight of an embedding"

finish
