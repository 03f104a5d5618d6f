-- memtide fit --method: the largest batch that fits when a model is fine-tuned by each method, for each length of its samples, on
-- each card, in memtide's own step and in PyTorch's (transformers, PEFT, bitsandbytes), with and without checkpoints.
local cards = require "memtide.net.cards"
local csv = require "memtide.results.csv"
local fit_ranks = require "memtide.cli.fit_ranks"
local literal = require "memtide.base.literal"
local max_batch = require "memtide.sweep.max_batch"
local options = require "memtide.cli.options"
local peft = require "memtide.net.peft"
local report = require "memtide.results.report"
local selection = require "memtide.sweep.selection"
local util = require "memtide.base.util"

local methods = {}

-- ---- the methods, as practitioners set them

local NF4 = {load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_use_double_quant = true}

local function with_dora(adapters)
  adapters.use_dora = true
  return adapters
end

-- {name, text, make(model, the adapters' configuration) -> the model}. All of them have precision = "bf16" unless the command line
-- or the script says another.
local METHODS = {
  {name = "full", text = "all parameters are trained", make = function(model) return model end},
  {name = "lora", text = "adapters in fp32 over a frozen base", make = peft.lora},
  {name = "qlora", text = "the same over a base in NF4 with double quantisation",
    make = function(model, adapters) return peft.lora(peft.quantize(model, NF4), adapters) end},
  {name = "dora", text = "lora with a magnitude for each row of a weight",
    make = function(model, adapters) return peft.lora(model, with_dora(adapters)) end},
  {name = "qdora", text = "the same over a base in NF4 with double quantisation",
    make = function(model, adapters) return peft.lora(peft.quantize(model, NF4), with_dora(adapters)) end},
}
for _, method in ipairs(METHODS) do METHODS[method.name] = method end
local NAMES = {}
for i, method in ipairs(METHODS) do NAMES[i] = method.name end

local LENGTHS = {"seq", "tokens"} -- the script's option that says how many tokens a sample has
local STEPS = {
  {framework = "memtide", checkpoint = "none", title = "memtide"},
  {framework = "memtide", checkpoint = "marked", title = "checkpointed"},
  {framework = "pytorch", checkpoint = "none", title = "PyTorch"},
  {framework = "pytorch", checkpoint = "marked", title = "checkpointed"},
}
local COLUMNS = {"card", "method", "tokens", "framework", "checkpoint", "batch", "bytes", "next_bytes", "room"}

-- ---- the command line

local function words_of(text)
  local list = {}
  for word in (text .. ","):gmatch "([^,]*)," do list[#list + 1] = word end
  return list
end

local function take_method(given, text)
  given.method = words_of(text)
  for _, name in ipairs(given.method) do
    if not METHODS[name] then
      util.fail_usage('--method: expected some of %s, found "%s"%s', table.concat(NAMES, ", "), name, util.meant(name, NAMES))
    end
  end
end

local function take_seq(given, text)
  given.seq = {}
  for i, word in ipairs(words_of(text)) do
    local count = math.tointeger(tonumber(word))
    if not count or count < 1 then util.fail_usage('--seq: expected whole numbers of at least 1, found "%s"', word) end
    given.seq[i] = count
  end
end

methods.options = {
  {name = "method", argument = "M,M", take = take_method, completes = {words = table.concat(NAMES, " ")},
    text = "fine-tuning: the largest batch by each of " .. table.concat(NAMES, ", ") .. ", with --seq on the cards of --device"},
  {name = "seq", argument = "N,N", take = take_seq, text = "with --method: tokens of a sample (default: the script's)"},
  options.rank,
  {name = "target", argument = "NAME,NAME", text = "with --method: the layers that have adapters (all-linear)"},
}

-- Raises where one of the options stands without --method.
function methods.check(given)
  for _, name in ipairs{"seq", "rank", "target"} do
    if given[name] and not given.method then util.fail_usage("--%s: expected --method beside it", name) end
  end
  if given.rank == 0 then util.fail_usage '--rank: expected a whole number of at least 1, found "0"' end
end

-- ---- the cells

local function adapters_of(given)
  local target = given.target and words_of(given.target) or "all-linear"
  local rank = given.rank or 16
  return {r = rank, lora_alpha = 2 * rank, lora_dropout = 0.05, target_modules = target}
end

-- The columns of the lines: of several ranks how many, and the stage, too
local function columns_of(given)
  local columns = table.move(COLUMNS, 1, #COLUMNS, 1, {})
  return given.world and table.move({"world", "zero"}, 1, 2, #columns + 1, columns) or columns
end

-- The steps that are asked about: of several ranks memtide's own
local function steps_of(given)
  if not given.world then return STEPS end
  local own = {}
  for _, step in ipairs(STEPS) do if step.framework == "memtide" then own[#own + 1] = step end end
  return own
end

-- {{world =, zero =}, ...}: one rank, unless --world says other numbers
local function ranks_of(given)
  local list = {}
  for _, world in ipairs(given.world or {1}) do
    for _, zero in ipairs(given.world and fit_ranks.stages(given) or {0}) do list[#list + 1] = {world = world, zero = zero} end
  end
  return list
end

-- Which of the script's options says how many tokens a sample has; nil: none does
local function length_of(one)
  for _, name in ipairs(LENGTHS) do if math.type(one.values[name]) == "integer" then return name end end
end

-- The script's experiment, whose model is fine-tuned by the method that `now.method` names
local function fine_tuned(experiment, adapters, now)
  local make = experiment.base.model
  if type(make) ~= "function" then
    util.fail_usage "fit: --method: expected a script whose model is a function, which makes one for each method"
  end
  return experiment:with{claims = false, sweep = false, cases = false, batch = 1, precision = "bf16", model = function(s)
    return METHODS[now.method].make(make(s), literal.copy(adapters))
  end}
end

-- How much may be allocated: of memtide's step all of it; PyTorch's allocator also has its error and a context beside it.
local function limit_of(step, device, room)
  if step.framework == "memtide" then return room end
  local sure = cards.limits(device, room)
  return sure + (cards.context(device) or 0)
end

-- The largest batch of one step -> {COLUMNS' names}. values: of the cell, world and zero among them
local function line_of(one, now, step, values, device, room)
  local v = literal.copy(one.values)
  for key, value in pairs(values) do v[key] = value end
  v.framework, v.checkpoint, v.batch = step.framework, step.checkpoint, 1
  v.device = step.framework == "pytorch" and device or one.values.device
  local line = {card = cards.name(device), method = now.method, framework = step.framework, checkpoint = step.checkpoint,
    room = room, step = step, world = values.world, zero = values.zero}
  local found, more = max_batch.largest({experiment = one.experiment, values = v, name = one.name}, limit_of(step, device, room))
  line.batch, line.bytes, line.next_bytes = found.batch, found.bytes, more and more.bytes
  return line
end

local function room_of(device, memory) return memory or cards.device(device):info().memory_total end

-- {{COLUMNS' names}, ...} in the order of the table; and the values of their cell
local function solve(experiment, given, devices)
  local now, lines = {method = given.method[1]}, {}
  local made = fine_tuned(experiment, adapters_of(given), now)
  local one = selection.new(made, nil, {set = given.world and fit_ranks.set_of(given) or given.set, case = given.case}):cell(1)
  local length = length_of(one)
  if given.seq and not length then
    util.fail_usage("fit: --seq: the script has no option that says how many tokens a sample has: expected one of the name %s",
      table.concat(LENGTHS, " or "))
  end
  one.values.framework, one.values.device = "memtide", "cpu"
  for _, device in ipairs(devices) do
    for _, method in ipairs(given.method) do
      now.method = method
      for _, tokens in ipairs(given.seq or {length and one.values[length] or 0}) do
        for _, ranks in ipairs(ranks_of(given)) do
          for _, step in ipairs(steps_of(given)) do
            local values = {world = ranks.world, zero = ranks.zero}
            if length then values[length] = tokens end
            local line = line_of(one, now, step, values, device, room_of(device, given.memory))
            line.tokens = length and tokens or nil
            lines[#lines + 1] = line
          end
        end
      end
    end
  end
  return lines, one.values
end

-- ---- the table

-- "8 ranks with zero 3": the smallest number of ranks that holds the step, with the least stage that does; nil: none does
local function smallest(lines, step)
  local least
  for _, line in ipairs(lines) do
    if line.step == step and line.batch > 0 and (not least or line.world < least.world) then least = line end
  end
  return least and ("%d rank%s with zero %d"):format(least.world, least.world == 1 and "" or "s", least.zero)
end

-- What holds each method with the fewest ranks: the lines of one card, method and length
local function show_smallest(lines, steps)
  for _, step in ipairs(steps) do
    print(("%s, %s, %s: %s"):format(lines[1].card, lines[1].method, step.title, smallest(lines, step) or "none of these holds it"))
  end
end

local function show(experiment, given, lines, values)
  local adapters = adapters_of(given)
  local target = type(adapters.target_modules) == "table" and table.concat(adapters.target_modules, ", ") or adapters.target_modules
  print(("%s: the largest batch, and its bytes; -: not one sample, which needs so many"):format(experiment.base.name))
  local steps, several = steps_of(given), given.world ~= nil
  local head, out = {"card", "memory", "method", "tokens"}, {}
  if several then table.move({"ranks", "zero"}, 1, 2, 5, head) end
  for _, step in ipairs(steps) do head[#head + 1] = step.title end
  out[1] = head
  for i = 1, #lines, #steps do
    local line = lines[i]
    local row = {line.card, util.show_bytes(line.room), line.method, tostring(line.tokens or "")}
    if several then row[5], row[6] = tostring(line.world), tostring(line.zero) end
    for k = 1, #steps do row[#row + 1] = fit_ranks.text_of(lines[i + k - 1]) end
    out[#out + 1] = row
  end
  for _, text in ipairs(report.columns(out, {true, [3] = true})) do print(text) end
  local each = #ranks_of(given) * #steps -- lines of one card, method and length
  for i = 1, several and #lines or 0, each do show_smallest(table.move(lines, i, i + each - 1, 1, {}), steps) end
  print(("\nprecision = %s, %s"):format(values.precision, tostring(values.optimizer)))
  for _, method in ipairs(METHODS) do print(("%-6s %s"):format(method.name, method.text)) end
  print(("adapters: r = %d, lora_alpha = %d, lora_dropout = %g, target_modules = %s"):format(adapters.r, adapters.lora_alpha,
    adapters.lora_dropout, target))
  print(several and "memtide: its own step, as this CPU's libraries need it." or
    "memtide: its own step, as this CPU's libraries need it. PyTorch: transformers' with PEFT and bitsandbytes, max_memory_reserved;\z
    \nbeside it there is room for its error and the largest context of a process (docs/pytorch.md).")
end

function methods.run(experiment, given)
  local devices = cards.devices(given.device or "pytorch:all")
  if not devices then util.fail_usage('fit: --method: expected cards such as --device pytorch:rtx4090, found "%s"', given.device) end
  local lines, values = solve(experiment, given, devices)
  if given.json then
    for _, line in ipairs(lines) do util.must_write("standard output", io.stdout:write(report.json(line, columns_of(given)), "\n")) end
  elseif given.csv ~= "-" then show(experiment, given, lines, values) end
  if given.csv then csv.write(given.csv, columns_of(given), lines) end
  return 0
end

return methods
