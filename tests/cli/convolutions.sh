# Workspaces of convolutions of PyTorch's step: from the table, from a planning library where one was built, or estimated.
. tests/tap.sh

cat >net.lua <<'LUA'
local mt = require "memtide"
return mt.experiment{
  name = "net", model = mt.models.SimpleConvNet(), input = {3, 32, 32}, classes = 10, loss = mt.nn.CrossEntropyLoss(),
  optimizer = mt.optim.SGD{}, batch = 32, framework = "pytorch",
}
LUA
sed "s/SimpleConvNet()/SimpleConvNet{size = 20}/; s/32, 32/20, 20/" net.lua >other.lua
export MEMTIDE_PLAN=/none

memtide explain net.lua
has "$out" "workspaces of convolutions: 5 passes, cuDNN 9.26.0, from memtide's table" "a common size is in the table"
case $out in *"an estimate, from"*) exact=no ;; *) exact=yes ;; esac
is $exact yes "... and its peaks are exact"

memtide explain net.lua --set batch=33
has "$out" "5 passes, cuDNN 9.26.0, between the batches of memtide's table" "another batch lies between two of the table"
has "$out" "an estimate, from" "... with bounds"
memtide explain other.lua
has "$out" "5 passes, an estimate: neither the table nor a cuDNN here knows them" "another size is estimated"
has "$out" "an estimate, from" "... with bounds"
memtide explain net.lua --set pytorch=cudnn_benchmark=true
has "$out" "an estimate, from" "cudnn_benchmark has bounds, too"
memtide fit net.lua --device pytorch:t4 --set batch=33
has "$out" "What cuDNN takes beside the tensors is not known exactly" "fit says so"
memtide dump net.lua --set batch=33
has "$out" "aten::cudnn_convolution_backward_weight" "a workspace is never left out"

MEMTIDE_PLAN=$(cd "$ROOT" && realpath "${BUILD:-build}")/memtide_plan.so
if [ -f "$MEMTIDE_PLAN" ]; then
    memtide explain net.lua --set batch=33
    has "$out" "of this machine, asked about the card" "the planning library is asked about other sizes"
    case $out in *"an estimate, from"*) exact=no ;; *) exact=yes ;; esac
    is $exact yes "... and its answer is exact"
else
    skip "the planning library is asked about other sizes" "it was not built"
    skip "... and its answer is exact" "it was not built"
fi
finish
