# JSON: numbers, true and false as such, of fresh rows and of those that are read back; text that is no UTF-8.
command -v python3 >/dev/null || { echo "1..0 # SKIP no python3, whose JSON reader is asked"; exit 0; }
. tests/tap.sh

cat >typed.lua <<'LUA'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "typed", input = {4}, classes = 2, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  model = function(s)
    assert(s.rate and s.term and s.flag and s.list)
    return nn.Sequential{nn.Linear(4, s.width, {bias = s.bias}), nn.Linear(s.width, 2)}
  end,
  cases = {{case = "1e3", batch = 8}}, accumulate = 2,
  sweep = {{"width", {3}}, {"bias", {false, true}}, {"rate", {0.25}}, {"term", {"4"}}, {"flag", {"true"}},
    {"list", {{1, 2}}}},
  steps = 1, warmup = 0,
}
LUA
# The JSON lines in out.txt as Python has them: the values under these names
values() {
    python3 -c '
import json, sys
for line in open("out.txt", encoding="utf-8"): print(*(repr(json.loads(line).get(name)) for name in sys.argv[1:]))
' "$@"
}
names="case batch accumulate graph inplace checkpoint width bias rate term flag list repeat peak_bytes"
memtide run typed.lua --json -q
values $names >fresh.txt
is "$(sed 's/ [0-9]*$//' fresh.txt)" "'1e3 width=3 bias=false rate=0.25 term=4 flag=true list={1, 2}' 8 2 True 'marked' \
'none' 3 False 0.25 '4' 'true' '{1, 2}' 1
'1e3 width=3 bias=true rate=0.25 term=4 flag=true list={1, 2}' 8 2 True 'marked' 'none' 3 True 0.25 '4' 'true' '{1, 2}' 1" \
    "numbers, flags and words"
memtide run typed.lua --json -q
is "$(values $names)" "$(cat fresh.txt)" "a row that is read back has the same values"
has "$(sed -n 3p typed.csv)" ',true,true,true,"{1, 2}",0.25,4,3,ok,' "in the file they are words"
memtide run typed.lua --set inplace=true --set checkpoint=1MiB --json -q
is "$(values inplace checkpoint)" "$(printf 'True 1048576\nTrue 1048576')" "of settings that have words, too"

memtide fit typed.lua --memory 1MiB --json
is "$(values accumulate | sort -u | tr '\n' ' ') $(values inplace bias | sort -u | tr '\n' ' ')" \
    "1 2 4  'marked' False 'marked' True True False True True " "fit"
memtide compare typed.csv typed.csv --json
is "$status $(values a_status | sort -u)" "0 'ok'" "compare"
sed '1s/,case,/,which,/' typed.csv >other.csv
memtide compare typed.csv other.csv --json
is "$(values bias inplace checkpoint | sort -u)" "False 'marked' 'none'
False True 1048576
True 'marked' 'none'
True True 1048576" "where cells are named by their settings, these have their types"

# ---- commands about one cell, a file, the machine
check() { # what; Python that looks at `t`, the objects of out.txt in a list
    result "$(python3 -c '
import json, sys
t = [json.loads(line) for line in open("out.txt", encoding="utf-8")]
exec(sys.argv[1])
' "$2" >python.txt 2>&1; echo $?)" "$1"
    sed 's/^/# /' python.txt
}
one="typed.lua --set bias=true -q"
memtide explain $one --json
check "explain" '
(t,) = t
assert [l["path"] for l in t["layers"]] == ["0", "1"] and t["layers"][0]["output"] == [8, 3], t
assert sum(c["step_bytes"] for c in t["categories"]) == t["peak_bytes"] and t["batch"] == 8, t
assert sum(c["hand_bytes"] for c in t["categories"]) == t["hand_bytes"]
assert t["layers"][0]["counted"] is True and t["parameters"] == 23 and t["host"] == [] and t["counting"] == "outputs"'
memtide explain $one --json --set framework=pytorch
check "explain of PyTorch" '
(t,) = t
assert t["framework"] == "pytorch" and t["tensors"][0]["bytes"] > 0 and t["estimated"] is False
assert t["max_memory_reserved"] >= t["max_memory_allocated"] > 0 and t["least_seconds"] > 0'
memtide dump $one --json
check "dump" '
(t,) = t
assert [o["op"] for o in t["ops"]] == list(range(len(t["ops"])))
assert {o["phase"] for o in t["ops"]} == {"forward", "backward", "update"} and {o["times"] for o in t["ops"]} == {1, 2}
names = {b["name"]: b for b in t["buffers"]}
assert names["0.weight"]["always"] is True and names["0.weight"]["shape"] == [3, 4] and names["0.weight"]["bytes"] == 48
assert all(0 <= b["first_op"] <= b["last_op"] < len(t["ops"]) and b["aligned_bytes"] >= b["bytes"] for b in t["buffers"])
assert max(b["offset"] + b["aligned_bytes"] for b in t["buffers"] if not b["host"]) == t["arena_bytes"] == t["peak_bytes"]'
memtide dump $one --json --network
check "dump --network" '
(t,) = t
assert t["inputs"] == [{"name": "", "shape": [8, 4]}] and t["output"] == [8, 2]
assert t["layers"][1]["parameters"][0] == {"name": "1.weight", "shape": [2, 3], "elements": 6, "trainable": True}'
memtide dump $one --json --set framework=pytorch
check "dump of PyTorch" '
(t,) = t
assert t["framework"] == "pytorch" and t["ops"][0]["op"] == 0 and t["buffers"][0]["bytes"] > 0'
memtide dump $one --json --passes
is "$status $err" "2 memtide: dump: --passes is text: expected it without --json" "the passes are text"
memtide devices --json
check "devices" '
cpu, gpu = t[0], t[1]
assert cpu["device"] == "cpu" and cpu["available"] is True and cpu["memory_total_bytes"] > 1 << 20 and cpu["threads"] == 1
assert isinstance(cpu["emulated"], list) and gpu["device"] == "cuda:0"
assert gpu["available"] or gpu["reason"]'
memtide verify typed.csv --json
check "verify" '
(t,) = t
assert t["file"] == "typed.csv" and t["rows"] == 4 and t["findings"] == [], t'
sed 's/,ok,/,fine,/' typed.csv >wrong.csv
memtide verify wrong.csv --json
is $status 1 "what is found is told by the exit status"
check "and listed" '
(t,) = t
assert len(t["findings"]) == 4 and t["findings"][0]["line"] == 2 and t["findings"][0]["field"] == "status", t
assert "found \"fine\"" in t["findings"][0]["problem"]'

cat >bytes.lua <<'LUA'
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{name = "bytes", input = {4}, loss = nn.CrossEntropyLoss(), sweep = {{"batch", {1, 2, 3}}},
  model = function(s)
    if s.batch == 2 then error("b\xff\xc3(\xed\xa0\x80\xf4\x90\x80\x80\xc3\xa4\0\x7f\xe2\x82") end
    if s.batch == 3 then error(("\xff"):rep(100000)) end
    return nn.Linear(4, 2)
  end, steps = 1, warmup = 0}
LUA
memtide predict bytes.lua --json -q
is "$status $(values status | tr '\n' ' ')" "1 'predicted' 'error' 'error' " "text that is no UTF-8 is JSON all the same"
is "$(values reason | sed -n 2p)" "'bytes.lua:5: b��(�������ä\\x00\\x7f��'" "what is no character is U+FFFD"
# the first 4096 bytes of a reason are kept: "bytes.lua:6: " and these
is "$(values reason | sed -n 3p | tr -cd '�' | wc -m)" 4083 "however much there is of it"

finish
