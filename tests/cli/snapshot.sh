# memtide snapshot: the table, JSON and CSV of a recording, and what is refused.
. tests/tap.sh

cat >write.lua <<'LUA'
local pickle = dofile(arg[1] .. "/tests/pickle.lua")
local MIB = 1 << 20
local function event(action, at, size, file)
  return {action = action, addr = (1 << 40) + at, size = size, stream = 0, time_us = 1000 + at // 1000,
    frames = {{name = "at::_ops::mm::call()", filename = "??", line = 0}, {name = "forward", filename = file, line = 3}}}
end
local segment = {device = 0, address = 1 << 40, total_size = 20 * MIB, stream = 0, segment_type = "large", blocks = {
  {size = 4 * MIB, requested_size = 4 * MIB - 100, state = "active_allocated", frames = {}}}}
local file = assert(io.open("s.pickle", "wb"))
file:write(pickle.dump{segments = {segment}, device_traces = {{event("alloc", 4 * MIB, 5 * MIB, "/a/net\27[31m.py"),
  event("free_requested", 4 * MIB, 5 * MIB, "/a/x.py"), event("free_completed", 4 * MIB, 5 * MIB, "/a/x.py")}},
  allocator_settings = pickle.dict{}})
file:close()
LUA
memtide write.lua "$ROOT"

memtide snapshot s.pickle --memory 16MiB --set alloc_conf=max_split_size_mb:20
is $status 0 "a snapshot"
has "$out" "s.pickle: GPU 0, 1 allocations and 1 frees after 1 tensors that were there" "what is in it"
has "$out" "replayed: 1 of 1 allocations at the recorded address, 0 of 0 segments as recorded" "that it agrees"
has "$out" "max_memory_allocated           9437184   9.0 MiB  blocks, after event 1" "the peak"
has "$out" "free in segments with blocks  11534336  11.0 MiB" "what is free then"
has "$out" "rounding                           100     100 B" "what is rounded up"
has "$out" "5242880  0.000 ms     aten::mm  net?[31m.py:3" "a tensor with its line, harmless"
has "$out" "with at most 16777216 bytes" "the limit"
has "$out" "max_split_size_mb:20" "settings that were asked for"
has "$out" "out of memory: requested 20971520 bytes, held 0, limit 16777216" "what does not fit under them"

memtide snapshot s.pickle --json
has "$out" '"max_memory_allocated":9437184' "JSON"
is "$(echo "$out" | grep -c .)" 1 "... on one line"
memtide snapshot s.pickle --csv -
is "$(echo "$out" | head -n 1)" \
    "row,name,where,bytes,tensors,live_bytes,live_tensors,age_us,allocated,reserved,memory,fits" "CSV"
has "$out" "total,max_memory_reserved,,20971520," "... with totals"
has "$out" "op,aten::mm,,5242880,1,5242880,1," "... ops"
memtide snapshot s.pickle --csv s.csv
is "$(grep -c '^what_if,' s.csv)" 4 "... and what other settings do, to a file"
has "$out" "The peak" "... beside the table"

# every field, of a recording beside what is predicted of it, stands in docs/json.md's part about snapshots
if command -v python3 >/dev/null; then
    memtide dump "$ROOT/experiments/article.lua" --set framework=pytorch --quiet --snapshot step.pickle
    memtide snapshot step.pickle --against "$ROOT/experiments/article.lua" --set batch=32 --memory 1MiB --json --quiet
    is "$(sed -n '/^## snapshot/,$p' "$ROOT/docs/json.md" >part.md; python3 - <<'PY'
import json, re
known, lacking = set(re.findall(r"`(\w+)`", open("part.md").read())), set()
def walk(v):
    if isinstance(v, dict):
        lacking.update(name for name in v if name not in known)
    for one in v.values() if isinstance(v, dict) else v if isinstance(v, list) else []:
        walk(one)
t = json.load(open("out.txt"))
walk(t)
assert t["against"]["pairs"] > 0 and t["what_if"][0]["reason"], "too little to look at"
print("lacking:", *sorted(lacking))
PY
)" "lacking:" "docs/json.md has every field"
else
    skip "docs/json.md has every field" "no python3"
fi

refused() { # status, part of the message, arguments
    want=$1 part=$2
    shift 2
    memtide snapshot "$@"
    is $status "$want" "refused: $*"
    has "$err" "$part" "... and why"
}
refused 2 "snapshot: expected one file, found 0"
refused 66 "cannot open nowhere.pickle" nowhere.pickle
refused 65 "write.lua: byte 0" write.lua
refused 2 'snapshot: --set: expected alloc_conf=SETTINGS' s.pickle --set batch=3
refused 65 'alloc_conf: unknown key "max_split_size_m" (did you mean' s.pickle --set alloc_conf=max_split_size_m:3
refused 65 "no events of GPU 1" s.pickle --gpu 1
refused 2 "--memory: expected a size" s.pickle --memory much
printf 'cposix\nsystem\n(S"true"\ntR.' >evil.pickle
refused 65 "evil.pickle: byte 0, GLOBAL: refused" evil.pickle
memtide completion bash
has "$out" "snapshot) words=" "completion"
finish
