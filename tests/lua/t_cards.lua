-- The cards that PyTorch's step is predicted for: what the table says, ranges and limits, what a user calibrates, and the
-- answers of memtide fit, each against predictions of its own.
local tap = dofile "tests/tap.lua"
local calibration = require "memtide.net.calibration"
local cards = require "memtide.net.cards"
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local fit = require "memtide.cli.fit_pytorch"
local mt = require "memtide"
local user_files = require "memtide.base.user_files"
local nn = mt.nn

local folder = os.tmpname()
os.remove(folder)
function user_files.path(name) return folder .. "/memtide/" .. name end

local MIB = 1 << 20

-- ---- the table
local by_name = {}
for _, card in ipairs(core.cards()) do by_name[card.name] = card end
tap.is(#cards.names, 12, "twelve cards")
for name, mib in pairs{t4 = 14913, ["rtx3060-12gb"] = 11910, rtx4090 = 24081, ["a100-40gb"] = 40326, h200 = 143156} do
  tap.is(by_name[name].memory, mib * MIB, name .. " has what PyTorch's properties say")
end
for _, name in ipairs(cards.names) do
  local card = by_name[name]
  tap.ok(card.log ~= "" and card.source ~= "" and (card.context ~= nil) == (card.source ~= "unknown"), name .. " has sources")
end

-- docs/pytorch.md has a line for each
local function grouped(n)
  local text = ("%d"):format(n)
  repeat
    local found
    text, found = text:gsub("^(%d+)(%d%d%d)", "%1,%2")
  until found == 0
  return text
end
local page <close> = assert(io.open "docs/pytorch.md")
local docs = page:read "a"
for _, name in ipairs(cards.names) do
  local card = by_name[name]
  local line = ("| `%s` | %s | %s | %s | %d | %s | %s | %s |"):format(name, card.title, grouped(card.memory // MIB), card.log,
    card.multiprocessors, grouped(card.threads), grouped(card.cublas_workspace),
    card.context and grouped(card.context) or "unknown")
  tap.has(docs, line, name .. " is in the documentation as it is in the table")
end
for _, name in ipairs(cards.names) do
  local p = by_name[name].peaks
  tap.ok(p.bytes >= 300e9 and p.fp32 > 0 and p.tf32 >= p.fp32 and p.bf16 >= p.fp32 and p.fp16 >= p.bf16,
    name .. ": what it does per second")
  local function tera(x) return ("%g"):format(x / 1e12) end
  tap.has(docs, ("| `%s` | %s | %s | %s | %s | %s |"):format(name, tera(p.fp32), tera(p.tf32), tera(p.fp16), tera(p.bf16),
    grouped(p.bytes // 1e9)), name .. " is in the table of peaks as it computes")
end
tap.is(cards.peaks "NVIDIA H200".bytes, by_name.h200.peaks.bytes, "peaks are found by a device's name")
tap.is(cards.peaks "a processor", nil, "and those of another device are not known")
tap.is(table.concat(cards.devices "pytorch:t4,h100", " "), "pytorch:t4 pytorch:h100", "a list of cards")
tap.is(#cards.devices "pytorch:all", #cards.names, "all of them")
tap.is(cards.devices "cuda:h200", nil, "another device is no card")
tap.raises('there is no card "t5"; did you mean "t4"?', "a misspelt card", cards.devices, "pytorch:t4,t5")
tap.raises('there is no card ""', "and none", cards.devices "pytorch:t4" and cards.devices, "pytorch:")

-- cuBLAS's workspace is 32 MiB on Hopper and Blackwell
local function mlp(more)
  local options = {name = "mlp", input = {64}, classes = 8, loss = nn.CrossEntropyLoss(), batch = 32,
    model = nn.Sequential{nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)}, framework = "pytorch", steps = 1, warmup = 0}
  for key, value in pairs(more or {}) do options[key] = value end
  return mt.experiment(options)
end

local function compiled(one, changes, memory)
  local values = {}
  for key, value in pairs(one.values) do values[key] = value end
  for key, value in pairs(changes) do values[key] = value end
  return cell.compile(cell.build{experiment = one.experiment, values = values, name = "", places = {}, memory = memory})
end

local function workspace_on(name)
  local probe = compiled(mlp():cells()[1], {device = "pytorch:" .. name})
  local found
  for bytes in probe.program:dump():gmatch "%+%d+ (%d+) workspace" do found = math.max(found or 0, tonumber(bytes)) end
  cell.release(probe)
  return found
end
for name, bytes in pairs{t4 = 8519680, rtx4090 = 8519680, ["a100-80gb"] = 8519680, h100 = 33554432, rtx5090 = 33554432,
  b200 = 33554432} do
  tap.is(workspace_on(name), bytes, "cuBLAS's workspace on " .. name)
end

-- ---- ranges and limits
local low, high = cards.range("pytorch:t4", {max_memory_reserved = 1000 * MIB})
tap.is(low, 986 * MIB + 128 * MIB, "a context that is not known takes 128 MiB at least")
tap.is(high, 1014 * MIB + 1536 * MIB, "and 1,536 at most")
for _, name in ipairs(cards.names) do
  local device, room = "pytorch:" .. name, by_name[name].memory
  local sure, perhaps = cards.limits(device, room)
  local _, most = cards.range(device, {max_memory_reserved = sure})
  local least = cards.range(device, {max_memory_reserved = perhaps})
  tap.ok(most <= room and least <= room and sure < perhaps, name .. ": what may be reserved stays within its memory")
  _, most = cards.range(device, {max_memory_reserved = sure + MIB})
  least = cards.range(device, {max_memory_reserved = perhaps + MIB})
  tap.ok(most > room and least > room, name .. ": and no more may be")
end
tap.is(cards.limits("pytorch:t4", MIB), 1, "a context alone may fill the memory")

-- ---- calibration
tap.is(cards.context "pytorch:t4", nil, "nothing is known")
tap.is(select(2, cards.context "pytorch:a100-40gb"), false, "the table knows one, of another machine")
tap.is(cards.context "cpu", nil, "another device has none")
local function entry(version, bytes, card)
  return {card = card or "t4", version = version, bytes = bytes, date = "2026-01-02", source = "a test"}
end
calibration.store(entry("2.15", 300 * MIB))
tap.is(cards.context "pytorch:t4", 300 * MIB, "a calibrated context is used")
low, high = cards.range("pytorch:t4", {max_memory_reserved = 0})
tap.is(("%d %d"):format(low, high), ("%d %d"):format(300 * MIB, 300 * MIB), "and is exact")
local probe = compiled(mlp():cells()[1], {device = "pytorch:t4"})
tap.is(probe.prediction.device_bytes, probe.prediction.max_memory_reserved + 300 * MIB, "predictions have it")
cell.release(probe)
calibration.store(entry("2.6", 200 * MIB))
calibration.store(entry("2.15", 100 * MIB, "l4"))
tap.is(cards.context "pytorch:t4", 200 * MIB, "of several versions the last one")
calibration.store(entry("2.15", 400 * MIB))
tap.is(#calibration.list(), 3, "an entry replaces one of its card and version")
tap.is(cards.context "pytorch:t4", 400 * MIB, "and is then the last")
calibration.store(entry("2.15", 500 * MIB, "a100-40gb"))
tap.is(cards.context "pytorch:a100-40gb", 500 * MIB, "before the table's")

-- another process finds it, and what is damaged
local function again()
  package.loaded["memtide.net.calibration"] = nil
  return require "memtide.net.calibration"
end
local fresh = again()
tap.is(fresh.find("t4").bytes, 400 * MIB, "it is read back")
tap.is(fresh.find("h100"), nil, "of that card alone")
for _, text in ipairs{"t4\t2.15\t0\td\ts", "t4\t2.15\tx\td\ts", "t4\t2.15", "t4\t2.15\t99999999999999999999\td\ts"} do
  local file = assert(io.open(user_files.path "calibration.txt", "w"))
  assert(file:write("l4\t2.15\t5\td\ts\n" .. text .. "\n"))
  file:close()
  tap.raises("calibration.txt:2: expected card, version, bytes, date and source", "a damaged line", again().list)
end
os.remove(user_files.path "calibration.txt")
local real = user_files.path
function user_files.path() return nil end
tap.raises("neither XDG_CACHE_HOME nor HOME is set", "no folder", again().store, entry("2.15", 1))
function user_files.path() return "/dev/null/memtide/calibration.txt" end
tap.raises("cannot write /dev/null/memtide/calibration.txt", "a folder that cannot be", again().store, entry("2.15", 1))
user_files.path = real

-- ---- memtide fit: each line against predictions
for _, one in ipairs(calibration.list()) do one.card = "none" end -- what this process has stored is forgotten

local function block() return nn.Checkpoint{nn.Sequential{nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()}} end
local marked = nn.Sequential{block(), block(), block(), nn.Linear(64, 8)}

local function quiet(more)
  local given = {set = {}, words = {}, args = {}, own = {}, given = {}, say = function() end}
  for key, value in pairs(more or {}) do given[key] = value end
  return given
end

local CHANGES = {["as it is"] = {}, ["precision = amp_bf16"] = {precision = "amp_bf16"},
  ["checkpoint = marked"] = {checkpoint = "marked"}, ["fused optimizer"] = {pytorch = "fused=true"},
  ["precision = amp_fp16"] = {precision = "amp_fp16"}, ["for-loop optimizer"] = {pytorch = "foreach=false"},
  ["accumulate x 2"] = {accumulate = 2}, ["accumulate x 4"] = {accumulate = 4}, ["accumulate x 8"] = {accumulate = 8},
  ["expandable segments"] = {pytorch = "alloc_conf=expandable_segments:True"}}
-- What costs no time is worth more than any other saving, and that more than none.
local function rank(line)
  if line.saved_bytes <= 0 then return line.saved_bytes - 1e15 end
  return line.time_percent < 0.05 and line.saved_bytes + 1e15 or line.saved_bytes / line.time_percent
end
local room, wrong, seen = 1900 * MIB, {}, {}
local experiment = mlp{model = marked, batch = 1000000}
local groups = fit.solve(experiment, quiet{memory = room}, {"pytorch:t4", "pytorch:h100"})
tap.is(#groups, 1, "a group for the cell")
for _, lines in ipairs(groups[1]) do
  tap.is(lines[1].technique, "as it is", "the cell itself comes first")
  for i, line in ipairs(lines) do
    if i > 2 and rank(line) > rank(lines[i - 1]) then wrong[#wrong + 1] = "order of " .. line.technique end
    local change, device = CHANGES[line.technique], "pytorch:" .. line.card
    if change then
      seen[line.technique] = true
      local function what(batch, memory)
        local all = {device = device, batch = batch}
        for key, value in pairs(change) do all[key] = value end
        local one = compiled(experiment:cells()[1], all, memory)
        local found, floor = one.prediction, one.program:floor()
        cell.release(one)
        return found, floor
      end
      local sure, perhaps = cards.limits(device, room)
      local own, floor = what(line.batch)
      local samples, first = line.batch * line.accumulate, lines[1]
      local slower = floor / samples / (first.floor_seconds / (first.batch * first.accumulate))
      local good = line.floor_seconds == floor and math.abs(slower * 100 - 100 - line.time_percent) < 1e-9
        and own.max_memory_reserved == line.max_memory_reserved
        and own.max_memory_allocated == line.max_memory_allocated
        and line.saved_bytes == lines[1].max_memory_reserved - line.max_memory_reserved
        and what(line.largest_batch, sure).fits and not what(line.largest_batch + 1, sure).fits
        and what(line.tight_batch, perhaps).fits and not what(line.tight_batch + 1, perhaps).fits
        and line.gives_back == (line.verdict ~= "does not fit"
          and own.max_memory_reserved > (line.verdict == "fits" and sure or perhaps))
        and line.verdict == (line.batch <= line.largest_batch and "fits" or line.batch <= line.tight_batch and "tight"
          or "does not fit")
      if not good then wrong[#wrong + 1] = line.card .. ": " .. line.technique end
    end
  end
end
tap.is(table.concat(wrong, "; "), "", "verdicts, bytes and largest batches are those of single predictions")
for technique in pairs(CHANGES) do tap.ok(seen[technique], technique .. " is tried") end
local function technique_of(lines, name)
  for _, line in ipairs(lines) do if line.technique == name then return line end end
end
local best = technique_of(groups[1][1], "those that help")
tap.ok(best and best.saved_bytes >= groups[1][1][2].saved_bytes and best.verdict == "fits",
  "together they save most, and make it fit")
tap.is(groups[1][1][1].verdict, "does not fit", "where it does not as it is")

-- a step that fits only since the allocator gives cached memory back
local resized = mlp{input = {3, 64, 64}, batch = 4096, model = nn.Sequential{nn.AvgPool2d(2), nn.Upsample{scale_factor = 3},
  nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(3 * 32 * 32, 8)}}
local line = fit.solve(resized, quiet{memory = 2950 * MIB}, {"pytorch:t4"})[1][1][1]
tap.ok(line.verdict == "fits" and line.gives_back and line.device_bytes_most <= line.room,
  "where cached memory must be given back, the device's bytes are those of the step that does it")
line = fit.solve(resized, quiet{memory = 3200 * MIB}, {"pytorch:t4"})[1][1][1]
tap.ok(line.verdict == "fits" and not line.gives_back, "with a little more it need not be")

-- what is no technique of a cell
local function techniques(more, options)
  local names = {}
  for _, one in ipairs(fit.solve(mlp(more), quiet(options), {"pytorch:t4"})[1][1]) do names[one.technique] = true end
  return names
end
local names = techniques{mode = "eval", precision = "bf16"}
tap.ok(not names["fused optimizer"] and not names["accumulate x 2"] and not names["precision = amp_bf16"],
  "evaluation in 16 bits has neither optimizer nor wide values")
names = techniques{optimizer = mt.optim.RMSprop{}, batch = 7}
tap.ok(not names["fused optimizer"], "RMSprop has no fused form")
tap.ok(not names["accumulate x 2"] and not names["checkpoint = marked"], "an odd batch, and nothing to checkpoint")
names = techniques{pytorch = {foreach = true}}
tap.ok(names["fused optimizer"], "fused stands in place of foreach")
names = techniques{pytorch = {fused = true}}
tap.ok(names["for-loop optimizer"] and not names["fused optimizer"], "and the for-loop in place of fused")
tap.ok(not names["set_to_none = true"], "gradients are let go by default")
names = techniques{pytorch = {set_to_none = false, foreach = false}}
tap.ok(names["set_to_none = true"] and not names["for-loop optimizer"], "what is so already is no technique")

-- ---- the time of techniques, where it is known from the operations: products alone, so wide that bytes do not matter
local function changes(model, options)
  local found = {}
  for _, one in ipairs(fit.solve(mlp{model = model, input = {4096}, batch = 8192, optimizer = mt.optim.SGD{}}, quiet(),
    options)[1][1]) do found[one.technique] = one.time_percent end
  return found
end
local function wide() return nn.Linear(4096, 4096, {bias = false}) end
local part = nn.Checkpoint{nn.Sequential{wide(), nn.ReLU(), wide(), nn.ReLU()}}
local times = changes(nn.Sequential{part, nn.Checkpoint{nn.Sequential{wide(), nn.ReLU(), wide(), nn.ReLU()}}}, {"pytorch:t4"})
tap.near(times["checkpoint = marked"], 400 / 11, 1, "checkpointing makes 4 of 11 products once more: dx of the first is not asked for")
tap.near(times["precision = amp_fp16"], (8.1 / 65 - 1) * 100, 5, "a T4 computes in fp16 as its data sheet says")
tap.near(times["precision = amp_bf16"], 0, 3, "and has no unit for bf16")
times = changes(nn.Sequential{wide(), nn.ReLU(), wide()}, {"pytorch:h100"})
tap.near(times["precision = amp_bf16"], (67 / 989.4 - 1) * 100, 5, "an H100 has")
tap.ok(times["accumulate x 2"] > 0 and times["accumulate x 2"] < times["accumulate x 4"], "each part reads the weights")
tap.ok(times["fused optimizer"] <= 0, "the fused form reads no more")

-- which cells, and which devices
groups = fit.solve(mlp{sweep = {{"batch", {4, 8}}, {"optimizer", {mt.optim.SGD{}, mt.optim.Adam{}}}}}, quiet(), {"pytorch:t4"})
tap.is(("%d %d"):format(#groups, groups[1].batch), "2 4", "cells that differ in what is tried are one")
tap.is(fit.solve(mlp{batch = "max"}, quiet(), {"pytorch:t4"})[1].batch, 1, "the largest batch stands for one sample")
local said = {}
groups = fit.solve(mlp{sweep = {{"offload", {"none", "1MB"}}}}, quiet{say = function(text) said[#said + 1] = text end},
  {"pytorch:t4"})
tap.ok(#groups == 1 and said[1]:find("left out", 1, true), "a cell that PyTorch's step is not known of is left out")
tap.raises('framework = "pytorch": expected checkpoint = "none"', "one alone is an error", fit.solve, mlp{checkpoint = "all"},
  quiet(), {"pytorch:t4"})
tap.is(#fit.devices(mlp(), {}), 12, "a script that names no card is answered for all")
tap.is(table.concat(fit.devices(mlp{device = "cuda:l4"}, {})), "pytorch:l4", "one that names a card for that")
tap.is(table.concat(fit.devices(mlp(), {device = "pytorch:b200"})), "pytorch:b200", "--device is before it")
tap.is(table.concat(fit.devices(mlp{sweep = {{"device", {"pytorch:t4", "pytorch:l4"}}}}, {}), " "), "pytorch:t4 pytorch:l4",
  "an axis of cards is those")
tap.is(fit.devices(mlp{framework = "memtide"}, {}), nil, "memtide's own step is not asked about")
tap.is(fit.devices(mlp{framework = "memtide"}, {device = "cuda:h200"}), nil, "nor on another device")
os.execute("rm -rf " .. folder)
tap.done()
