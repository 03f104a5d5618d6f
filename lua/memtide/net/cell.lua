-- One cell of an experiment: from its settings to a network, a program, a prediction and a run.
local cards = require "memtide.net.cards"
local core = require "memtide.core"
local data = require "memtide.net.data"
local exponents = require "memtide.net.exponents"
local inputs = require "memtide.net.inputs"
local iterator = require "memtide.net.iterator"
local links = require "memtide.net.links"
local measure = require "memtide.results.measure"
local nn = require "memtide.net.nn"
local optim = require "memtide.net.optim"
local literal = require "memtide.base.literal"
local process_memory = require "memtide.results.process_memory"
local round = require "memtide.net.round"
local settings = require "memtide.net.settings"
local trainings = require "memtide.net.trainings"
local util = require "memtide.base.util"
local weights = require "memtide.net.weights"

local cell = {}
local SCHEME = "3" -- part of cell ids: a new number when settings_text changes
local RANDOM_SAMPLES = 50000 -- in a dataset of random numbers

local devices = {} -- by name; each is opened once in a process

function cell.device(name)
  if not devices[name] then devices[name] = cards.device(name) or util.must(core.device(name)) end
  return devices[name]
end

-- ---- what the cell works on

-- How the ranks of the cell are arranged: {data = how many have other samples, tensor = how many divide products,
-- pipeline = how many have other layers}
function cell.mesh(self)
  local function size(axis) return math.tointeger(tonumber((self.values.mesh or ""):match(axis .. "=(%d+)") or 1)) end
  local tensor, pipeline = size "tensor", size "pipeline"
  return {data = math.max(1, (self.values.world or 1) // (tensor * pipeline)), tensor = tensor, pipeline = pipeline}
end

-- Samples of one update, of all ranks together
function cell.effective_batch(self) return self.values.batch * self.values.accumulate * cell.mesh(self).data end

-- batch = "max" is a number only when a device is known (max_batch.lua); until then the network has one sample.
local function built_batch(v) return v.batch == "max" and 1 or v.batch end

-- Returns f(...). If an error has no line, it gets `where`.
local function placed(where, f, ...)
  local found = table.pack(util.try(f, nil, ...))
  if found[1] then return table.unpack(found, 2, found.n) end
  local problem = found[2]
  if type(problem) == "string" and not problem:find "^[^\n]-:%d+: " then problem = where .. problem end
  error(problem, 0)
end

-- Returns make(values). An error without a line gets the one where the function begins: `return nn.Linear(3)` is a tail
-- call, so the function has left the stack when the mistake is found.
local function made_by(make, values)
  local of = debug.getinfo(make, "S")
  return (placed(("%s:%d: "):format(of.short_src, of.linedefined), make, values))
end

local function model_of(self)
  local v = self.values
  local model = v.model
  if type(model) == "function" then model = made_by(model, self.experiment.reads:hand_out(v)) end
  if not nn.is_layer(model) then
    util.fail_at(self.experiment.where, "experiment: model: expected a layer%s, found a %s",
      type(v.model) == "function" and " from its function" or "", type(model))
  end
  if type(v.model) ~= "function" then optim.check_model(v.optimizer, model) end -- a function makes another one each time
  return model
end

-- What an iterator leaves open, or has no part in
local NO_ITERATOR = {epochs = "how many batches it gives is not known: say steps", shuffle = "it has an order of its own",
  drop_last = "it gives whole batches"}

local function check_iterator(self)
  for _, name in ipairs(util.sorted_keys(NO_ITERATOR)) do
    if self.values[name] or self.experiment.base[name] then
      util.fail_at(self.experiment.where, "experiment: %s: the data are an iterator: %s", name, NO_ITERATOR[name])
    end
  end
end

-- The cell's dataset or iterator, or with trainings its datasets by name; nil: random numbers. If `data` is a function, it
-- is replaced by what the function returns, until the cell is released.
local function data_of(self)
  local v = self.values
  if type(v.data) == "function" then
    local make = v.data
    local function again() return made_by(make, self.experiment.reads:hand_out(v)) end
    local made = again()
    v.data = not data.is_dataset(made) and iterator.new(made, again) or self.experiment:check_value("experiment", "data", made)
    self.make_data = make
    if iterator.is(v.data) then check_iterator(self) end
  end
  if v.data and literal.is_table(v.data) ~= (v.trainings ~= nil) then
    util.fail_at(self.experiment.where, "experiment: data: expected %s", v.trainings and
      "datasets by name, which the round draws from" or
      "one dataset: there are no trainings that draw from several by name")
  end
  return v.data
end

-- ---- trainings that run together

-- What each training says for itself; other settings are those of the runtime, which all share
local OF_TRAINING = {"weights", "schedule", "batch", "accumulate", "precision", "checkpoint", "inplace", "mode", "optimizer",
  "workspace_limit", "grad_scaler", table.unpack(trainings.KEYS)}
-- Keys of a cell that trainings say for themselves, and those that mean nothing for a round
local SAID_BY_EACH, NOT_OF_ROUNDS = {"model", "input", "loss", "weights"}, {"classes", "target", "test_data", "epochs"}

-- What several ranks do not train together
local OF_ONE_RANK = {"trainings", "gradient_exponents"}

local function check_ranks(self)
  local world = self.values.world or 1
  for _, key in ipairs(OF_ONE_RANK) do
    if world > 1 and self.values[key] then
      util.fail_at(self.experiment.where, 'experiment: "%s" is not offered with several ranks: expected world = 1, found %d', key, world)
    end
  end
end

local function check_several(self)
  local v, where = self.values, self.experiment.where
  if not v.trainings or not v.round then
    util.fail_at(where, 'experiment: "%s" is missing: trainings and their round belong together',
      v.round and "trainings" or "round")
  end
  for _, key in ipairs(SAID_BY_EACH) do
    if v[key] ~= nil then util.fail_at(where, 'experiment: "%s" is said by each of the trainings', key) end
  end
  for _, key in ipairs(NOT_OF_ROUNDS) do
    if v[key] ~= nil then util.fail_at(where, 'experiment: "%s" is not offered with trainings', key) end
  end
  if v.gradient_exponents then util.fail_at(where, 'experiment: "gradient_exponents" is not offered with trainings') end
  if v.accumulate ~= 1 then
    util.fail_at(where, "experiment: accumulate: a training says it for itself, or its round calls backward several times")
  end
  if v.framework == "pytorch" then
    util.fail_at(where, 'experiment: framework = "pytorch" is not offered with trainings: PyTorch\'s step is that of one network')
  end
end

-- The trainings that the script declares, in the order of their names, and their round. No device is needed.
local function declare_round(self)
  local v, place = self.values, "experiment: trainings"
  local declared, common, list = v.trainings, {}, {}
  for key, value in pairs(v) do common[key] = value end
  common.batch = built_batch(v)
  if type(declared) == "function" then
    declared = made_by(declared, self.experiment.reads:hand_out(v))
    util.check_type(place, declared, "table")
  end
  local datasets = data_of(self) or {}
  for i, name in ipairs(util.sorted_keys(declared)) do
    local one = trainings.new(place .. "." .. name, name, declared[name], common, OF_TRAINING)
    one.schedule, one.weights, one.files = one.given.schedule or v.schedule, one.given.weights, rawget(one.model, "files")
    list[i] = one
  end
  trainings.check_together(place, list)
  return list, round.new(v.round, list, datasets, common.batch, self.experiment.reads:hand_out(common))
end

local function plan_round(self) return placed(self.experiment.where, declare_round, self) end

-- What is in a cell's id of its trainings: their names, networks, losses, what they say for themselves, and the calls of
-- a round
local function trainings_text(self)
  local parts = {}
  for _, one in ipairs(self.trainings) do
    local loss = one.loss and one.loss.kind .. " " .. one.loss.text or ""
    parts[#parts + 1] = ("%s\n%s%s"):format(one.name, one.network:text(), loss)
    for _, key in ipairs(OF_TRAINING) do
      local said = one.given[key]
      if settings.known[key] and said ~= nil then parts[#parts + 1] = ("%s=%s"):format(key, settings.text(said)) end
    end
    if one.given.schedule then parts[#parts + 1] = one.given.schedule.text end
    if one.weights then parts[#parts + 1] = "weights " .. literal.of(one.weights) end
  end
  parts[#parts + 1] = self.round.text
  return table.concat(parts, "\n")
end

-- The datasets of the round: as text, and how many samples the smallest has
local function describe_datasets(datasets)
  local texts, least = {}, nil
  for i, name in ipairs(util.sorted_keys(datasets)) do
    local info = datasets[name]:info()
    texts[i], least = ("%s: %s"):format(name, info.text), math.min(least or info.count, info.count)
  end
  return {text = table.concat(texts, "\n"), count = least}
end

-- The shape of one sample. If `input` is a function, it is replaced by what the function returns.
local function input_of(self)
  local v = self.values
  local dataset = data_of(self)
  if dataset and not iterator.is(dataset) then return dataset:info().shape end
  if type(v.input) == "function" then
    local shape = made_by(v.input, self.experiment.reads:hand_out(v))
    v.input = self.experiment:check_value("experiment", "input", type(shape) ~= "function" and shape)
  end
  return v.input or util.fail_at(self.experiment.where,
    'experiment: "input" is missing: the shape of one sample, or data')
end

-- Raises if the script sweeps an axis that nothing reads.
local function check_reads(self)
  local whole = self.experiment.declared
  local function call(position)
    local one = whole:cell(position)
    whole:passes(one)
    if one.values.trainings then return plan_round(one) end
    input_of(one)
    model_of(one)
  end
  whole.reads:check(function() return whole:positions(), whole:count() end, call)
end

local function sample_of(shape) return table.move(shape, 2, #shape, 1, {}) end

-- Raises unless the data have the targets that the loss needs for this output. found: {classes, target} of the data;
-- place: what the message calls them.
local function check_targets(self, place, found, output)
  local where, loss, kind = self.experiment.where, self.values.loss, nn.terms(self.values.loss)[1].kind
  local given = found.target and "target = " .. literal.of(found.target)
    or found.classes and "classes = " .. found.classes or "data without targets"
  local classes, has = nn.of_classes(loss), util.product(found.target or {})
  local needs, what = self.network:targets()
  if classes and not found.classes then
    util.fail_at(where, "%s: %s needs classes, found %s", place, kind, given)
  elseif not classes and (found.classes or given ~= "target = " .. literal.of(sample_of(output))) then
    util.fail_at(where, "%s: %s needs targets like the network's output, target = %s, found %s", place, kind,
      literal.of(sample_of(output)), (found.classes and found.target and "labels, " or "") .. given)
  elseif has ~= needs then
    util.fail_at(where, "%s: %s needs %d %s%s for each sample, found %d (%s): %s%s", place, kind, needs,
      classes and "label" or "number", needs == 1 and "" or "s", has, given, what,
      classes and not self.values.data and ("; if that is meant, say target = {%d}"):format(needs) or "")
  elseif classes and output[2] and output[2] < found.classes then
    util.fail_at(where, "%s: there are %d classes, but the network has %d outputs", place, found.classes, output[2])
  end
end

-- Completes the description of random data if the script leaves parts out: labels for each place of an output
-- (N, C, ...) or, if the script gives no classes, for each token of an input that the network reads. Any other number of
-- rows for a sample is an error unless the script says how many targets it has.
local function complete(self, found, output)
  if found.target then return end
  if not nn.of_classes(self.values.loss) then
    if not found.classes then found.target = sample_of(output) end
    return
  end
  local labels, of_tokens = self.network:targets(), false
  for _, one in ipairs(self.network:inputs()) do
    of_tokens = of_tokens or one.indices and util.product(sample_of(one.shape)) == labels
  end
  local of_places = output[1] == built_batch(self.values) and (found.classes or output[2]) == output[2]
  if labels ~= 1 and (of_places or not found.classes and of_tokens) then found.target = {labels} end
  found.classes = found.classes or output[2]
end

local function describe_data(self, output)
  local v = self.values
  local said = {shape = v.input, classes = v.classes, target = v.target} -- of random data, and of what an iterator gives
  local found = v.data and not iterator.is(v.data) and v.data:info() or said
  if found == said then complete(self, found, output) end
  check_targets(self, "experiment", found, output)
  if v.test_data then check_targets(self, "experiment: test_data", v.test_data:info(), output) end
  return found
end

-- seed, warm-up, steps; steps is nil if it depends on the data (epochs).
local function counts_of(v)
  return v.seed or 1, v.warmup or (v.epochs and 0 or 2), not v.epochs and (v.steps or 10) or nil
end

local function build_one(self)
  local v = self.values
  local input, model = input_of(self), model_of(self)
  check_reads(self)
  self.network = nn.network(model, v.loss, built_batch(v), input)
  self.trainings = {{network = self.network, values = v, weights = v.weights, files = rawget(model, "files")}}
  self.model_name = v.model_name or model.title or model.kind
  local _, frozen = self.network:parameters()
  if frozen > 0 then self.model_name = ("%s (%d frozen)"):format(self.model_name, frozen) end
  local _, output = self.network:shapes()
  self.data = describe_data(self, output)
end

local function build_several(self)
  check_several(self)
  self.trainings, self.round = plan_round(self)
  check_reads(self)
  self.network = trainings.union(self.trainings)
  local names = {}
  for i, one in ipairs(self.trainings) do names[i] = one.name end
  self.model_name = self.values.model_name or table.concat(names, " + ")
  self.data = describe_datasets(self.values.data or {})
end

-- Makes the cell's trainings (one, of its network, unless the script declares several and their round), network,
-- model_name and data. No device is needed.
function cell.build(self)
  local v = self.values
  cards.settle(v, self.experiment:says "framework")
  if self.experiment:says "link" then links.of(v.link) end -- raises where it is none
  check_ranks(self)
  cell.count_steps(self)
  if v.trainings or v.round then build_several(self) else build_one(self) end
  return self
end

-- Steps of all epochs, including the warm-up: of all their batches, for one step may go on into the next epoch
local function epoch_steps(self)
  if self.values.trainings then check_several(self) end
  local each = self.values.accumulate * cell.mesh(self).data -- batches of a step
  local v, whole, batch, dataset = self.values, self.experiment.base, built_batch(self.values), data_of(self)
  if not dataset then return v.epochs * (math.max(RANDOM_SAMPLES, batch) // batch) // each end
  local loader = util.must(data.open(dataset, {batch = batch, drop_last = whole.drop_last}))
  return v.epochs * loader:batches() // each
end

-- Sets the cell's seed, warm-up and steps. They are part of its id, even if the network cannot be built.
function cell.count_steps(self)
  self.seed, self.warmup, self.steps = counts_of(self.values)
  self.steps = self.steps or epoch_steps(self) - self.warmup
  if self.steps < 1 then
    util.fail_at(self.experiment.where, "experiment: the epochs have no step after the warm-up")
  end
  if self.warmup + self.steps > settings.MOST then
    util.fail_at(self.experiment.where, "experiment: warm-up and steps: expected at most %d together, found %d",
      settings.MOST, self.warmup + self.steps)
  end
end

local function data_text(self)
  local d = self.data
  if d.text then return d.text end
  return ("%s %s %s %s"):format(iterator.is(self.values.data) and "iterator" or "random", inputs.text(d.shape),
    d.classes or "", table.concat(d.target or {}, "x"))
end

local function settings_text(self, purpose)
  local v = self.values
  local parts = {SCHEME, purpose, self.experiment.name, v.case or ""}
  if v.loss then table.move({v.loss.kind, v.loss.text}, 1, 2, #parts + 1, parts) end
  for _, name in ipairs(settings.columns) do parts[#parts + 1] = settings.text(v[name]) end
  for _, name in ipairs(self.experiment:own_axes()) do
    if v[name] ~= nil then parts[#parts + 1] = ("%s=%s"):format(name, settings.text(v[name])) end
  end
  local places, seed, warmup, steps = table.concat(self.places, " "), counts_of(v)
  for _, item in ipairs{places, self.memory or "", seed, self.steps or steps or "", warmup} do
    parts[#parts + 1] = tostring(item)
  end
  for _, name in ipairs(measure.names) do
    local value = self.experiment.base[name]
    if value then parts[#parts + 1] = ("%s %s"):format(name, core.number(value)) end
  end
  if v.schedule then parts[#parts + 1] = v.schedule.text end
  if v.weights then parts[#parts + 1] = "weights " .. literal.of(v.weights) end
  return table.concat(parts, "\n")
end

local function part(text, digits) return core.hash(text):sub(-digits) end

local NO_NETWORK, NO_DATA = part("no network", 6), part("", 6)

-- The cell's id, the column `cell`: hashes SETTINGS-NETWORK-DATA, so that two ids show what differs. The order of the
-- axes does not matter. Of a cell that could not be built (self.failed) only the settings are known.
function cell.id(self, purpose)
  assert(self.failed or self.network and self.data)
  local test = self.values.test_data and self.values.test_data:info().text or ""
  local network = not self.failed and (self.round and trainings_text(self) or self.network:text())
  return ("%s-%s-%s"):format(part(settings_text(self, purpose), 12),
    self.failed and NO_NETWORK or part(network, 6),
    self.failed and NO_DATA or part(data_text(self) .. "\n" .. test, 6))
end

-- Is this the id of a cell that could not be built?
function cell.is_unbuilt(id) return id:match("[^-]*$") == NO_DATA end

-- Two ids -> a list of what differs, of "settings", "network", "data"
function cell.differences(a, b)
  local out, names = {}, {"settings", "network", "data"}
  local next_part = b:gmatch("[^-]+")
  for one in a:gmatch("[^-]+") do
    local name = table.remove(names, 1)
    if one ~= next_part() then out[#out + 1] = name end
  end
  return out
end

-- PyTorch's step on the cell's card stands in the program's place: it is predicted, and never run.
local function compile_eager(self)
  local v = self.values
  local trace, text, code = core.eager(self.network, settings.for_core(v), cards.name(v.device))
  if not trace then error(util.failure(text, code), 0) end
  return {trace}
end

-- The programs of that rank, which share the cell's runtime: of its trainings, then that which evaluates the test data, if
-- there are any. wanted: the text of each training's program after each pass is kept as well.
local function compile_rank(self, rank, wanted)
  local v, list = self.values, {}
  if v.framework == "pytorch" then return compile_eager(self) end
  local function add(network, given, passes)
    given.rank = rank
    local program, text, code = core.compile(network, given, cell.device(v.device), passes)
    if not program then error(util.failure(text, code), 0) end
    list[#list + 1] = program
    return text
  end
  for _, one in ipairs(self.trainings) do
    local text = add(one.network, self.round and trainings.settings(one) or settings.for_core(v), wanted)
    if wanted then one.passes = text end
  end
  if v.test_data and v.mode ~= "eval" then add(self.network, settings.for_evaluation(v)) end
  return list
end

-- Sets self.alike: {{rank, count, programs}, ...}, a class for ranks that are alike, each with the programs of its first rank.
-- The first class is that of self.rank, and the only one where that is given. Each stage of a pipeline has classes of its own.
local function compile_ranks(self, passes)
  local programs, mesh = compile_rank(self, self.rank or 0, passes), cell.mesh(self)
  self.alike = {{rank = self.rank or 0, count = 1, programs = programs}}
  if self.values.world == 1 or self.rank or self.values.framework == "pytorch" then return end
  self.alike = {}
  for first = 0, (mesh.pipeline - 1) * mesh.data * mesh.tensor, mesh.data * mesh.tensor do
    if first > 0 then programs = compile_rank(self, first) end
    for i, class in ipairs(util.must(programs[1]:alike{with = table.move(programs, 2, #programs, 1, {})})) do
      class.rank = class.rank + first
      class.programs = i == 1 and programs or compile_rank(self, class.rank)
      self.alike[#self.alike + 1] = class
    end
  end
end

-- The programs of the cell's trainings, the first as self.program, and their prediction; `passes`: the text of each
-- training's program after each pass as well. self.rank: which of several ranks they are for; nil: the prediction is that of
-- the rank which needs most, and the programs are those of the first.
function cell.compile(self, passes)
  assert(self.network and self.values.batch ~= "max")
  compile_ranks(self, passes)
  local programs = self.alike[1].programs
  for i, one in ipairs(self.trainings) do one.program = programs[i] end
  self.program, self.settings, self.eval = programs[1], self.values, programs[#self.trainings + 1]
  self.prediction = cell.predict(self, self.memory)
  return self
end

-- What f(program, part of its step) gives, summed over the calls of one step: of all its results. programs: of a rank, nil:
-- the first
local function sum_of_calls(self, f, programs)
  local sums = {}
  for _, call in ipairs(self.round and self.round.plan or {{1, "step"}}) do
    local found = {f((programs or self.alike[1].programs)[call[1]], call[2])}
    for i, x in ipairs(found) do sums[i] = (sums[i] or 0) + x end
  end
  return table.unpack(sums)
end

-- Floating-point operations, and bytes read and written, of one step
function cell.cost(self)
  return sum_of_calls(self, function(program, which) return program:cost(which) end)
end

-- Seconds that a step takes at least; see program:floor
function cell.floor(self, operations, bytes)
  return sum_of_calls(self, function(program, which) return program:floor(operations, bytes, which) end)
end

-- Of that class of ranks: bytes that one sends in a step, and the time by the model of links.lua, 0 where `known` is nil
local function transfer_of(self, class, known)
  local sent, seconds = 0, 0
  for axis, group in pairs(class.programs[1]:transfer()) do
    group.sent, group.calls, group.rounds = sum_of_calls(self, function(program)
      local one = program:transfer()[axis]
      return one.sent, one.calls, one.rounds
    end, class.programs)
    sent, seconds = sent + group.sent, seconds + (known and links.seconds(known, group) or 0)
  end
  return sent, seconds
end

-- Bytes that one rank sends to others in a step, of the rank that sends most, and the seconds that this takes by the model of
-- links.lua, of that which takes longest (nil: the links are not known). nil: there is one rank.
function cell.transfer(self)
  local v, most, longest = self.values, 0, 0
  if v.world == 1 or v.framework == "pytorch" then return nil end
  local info = cell.device(v.device):info()
  local known = links.of(v.link, info and info.name)
  for _, class in ipairs(self.alike) do
    local sent, seconds = transfer_of(self, class, known)
    most, longest = math.max(most, sent), math.max(longest, seconds)
  end
  return most, known and longest
end

-- Bytes of memory that the cell may use: --memory, or all that the device has; nil: not known. And how much of it is
-- free now.
function cell.room(self)
  if self.memory then return self.memory, self.memory end
  local info = cell.device(self.values.device):info() or {}
  return info.memory_total, info.memory_free or info.memory_total
end

-- The type of the cell's precision, such as "bf16", if the device has no instructions for it and computes in fp32; nil:
-- it has them.
function cell.emulated(self)
  local info = cell.device(self.values.device):info()
  local type_of = settings.type_of[self.values.precision]
  for _, name in ipairs(info and info.emulated or {}) do if name == type_of then return name end end
end

-- Of several trainings the peak's op begins with the name of its own.
local function with_names(self, found)
  local peak = found.peak
  if self.round and peak.op ~= "" then peak.op = ("%s: %s"):format(self.trainings[peak.program].name, peak.op) end
  return found
end

-- What a prediction of the cell's step asks of its trace: self.estimate is "least" or "most" of sizes that only cuDNN knows
local function conditions(self, limit)
  return {memory = limit, context = cards.context(self.values.device), estimate = self.estimate}
end

-- The step of one of the compiled cell's trainings: lua/bind_step.c
function cell.step(self, training) return util.must(training.program:step(conditions(self, self.memory))) end

-- The prediction of a class of self.alike: of each of its ranks
function cell.predict_rank(self, class, limit)
  local asked, programs = conditions(self, limit), class.programs
  asked.allocator, asked.steps, asked.calls = self.values.allocator, self.warmup + self.steps, self.round and self.round.plan
  asked.with = table.move(programs, 2, #programs, 1, {})
  return with_names(self, util.must(programs[1]:predict(asked)))
end

-- The prediction of the compiled cell; limit: bytes of memory, nil: no limit. self.estimate: "least" or "most" of sizes of
-- PyTorch's step that only cuDNN knows; nil: what is likely. Of several ranks that of the one which needs most, the first of
-- them, or does not fit; rank: which it is; sum: bytes that all need together, nil: a rank does not fit.
function cell.predict(self, limit)
  local most, sum = nil, 0
  for _, class in ipairs(self.alike) do
    local found = cell.predict_rank(self, class, limit)
    found.rank, sum = class.rank, sum + class.count * cell.needs(found)
    if not found.fits then return found end
    if not most or cell.needs(found) > cell.needs(most) then most = found end
  end
  most.sum = sum
  return most
end

-- Bytes of the device that a prediction comes to: of PyTorch's step also what its allocator holds beside tensors, and
-- the context, where that is known.
function cell.needs(prediction) return prediction.needs or prediction.peak.bytes end

-- ---- running

-- Random samples: of each input a dataset of its own, of which the first has the targets.
local function random_data(self, count)
  local d, parts = self.data, {}
  for k, input in ipairs(self.network:inputs()) do
    local made = util.must(core.dataset_random{count = count, shape = sample_of(input.shape),
      tokens = input.bytes and 256 or input.indices, positions = input.positions,
      classes = k == 1 and d.classes or k > 1 and 1 or nil, target = k == 1 and d.target or nil, seed = self.seed + k - 1})
    parts[input.name] = input.bytes and util.must(made:keep_bytes()) or made
  end
  return parts[""] or data.zip(parts, self.network:inputs()[1].name)
end

-- The loader of the cell's data, of several ranks that of self.rank; nil, message, code: it cannot be made.
function cell.loader(self)
  local v, whole, mesh = self.values, self.experiment.base, cell.mesh(self)
  local rank = (self.rank or 0) // mesh.tensor % mesh.data -- along the axis "data"
  if iterator.is(v.data) then
    return v.data:open{prefetch = v.prefetch, inputs = self.network:inputs(), labels = nn.of_classes(v.loss),
      targets = self.network:targets() * v.batch, world = mesh.data, rank = rank}
  end
  local dataset, batch = v.data, built_batch(v)
  if not dataset then dataset = random_data(self, math.max(RANDOM_SAMPLES, batch)) end
  return data.open(dataset, {batch = batch, shuffle = whole.shuffle, drop_last = whole.drop_last or not v.data,
    prefetch = v.prefetch, seed = self.seed, world = mesh.data, rank = rank})
end

-- The steps of one network, as measure.lua takes them. And what is to be closed after them
local function steps_of_one(self, runtime)
  local loader, schedule = util.must(cell.loader(self)), self.values.mode ~= "eval" and self.values.schedule
  local function begin(i)
    if schedule then util.must(runtime:write("lr", {schedule:rate(self.values.optimizer:rate(), i - 1)})) end
    return runtime:begin(1, loader)
  end
  return {begin = begin, result = function() return runtime:result() end, waits = self.values.device == "cpu"}, loader
end

-- The rounds of several. Each draws whole batches, so that all are the same. The script has the losses of its calls, so a round
-- is over when it has begun; its time is the host's.
local function steps_of_several(self, runtime)
  util.must(self.round:open(runtime, {batch = built_batch(self.values), shuffle = self.experiment.base.shuffle,
    drop_last = true, prefetch = self.values.prefetch}, self.seed))
  local made = {}
  local function begin()
    local one, before = {from = core.clock()}, made[#made]
    if before then before.to = one.from end
    one.loss, one.ops, one.replayed = self.round:step()
    one.to = core.clock()
    made[#made + 1] = one
    return true
  end
  local function result()
    local one = table.remove(made, 1)
    return one.loss, one.to - one.from, nil, one.ops, one.replayed
  end
  return {begin = begin, result = result, waits = true}, self.round
end

-- The index, 0 to count - 1, of the largest of values[from], values[from + stride], ...
local function largest(values, from, count, stride)
  local best = 0
  for k = 1, count - 1 do if values[from + k * stride] > values[from + best * stride] then best = k end end
  return best
end

-- For how many labels the output of that class is the largest, and how many there are but those that are `ignored`.
-- outputs: numbers of shape (N, classes) or (N, classes, H, W); labels: of the first samples, in the order (N, H, W).
function cell.correct(outputs, shape, labels, ignored)
  local classes, pixels, right, counted = shape[2], (shape[3] or 1) * (shape[4] or 1), 0, 0
  assert(#labels % pixels == 0 and #labels * classes <= #outputs)
  for i, label in ipairs(labels) do
    local sample, pixel = (i - 1) // pixels, (i - 1) % pixels
    if label ~= ignored then
      counted = counted + 1
      if largest(outputs, sample * classes * pixels + pixel + 1, classes, pixels) == label then right = right + 1 end
    end
  end
  return right, counted
end

-- Share of the test data's labels that are right.
local function test_accuracy(self, runtime, program)
  local v = self.values
  local loader = util.must(data.open(v.test_data, {batch = v.batch}))
  local right, all, output = 0, 0, program:names().output
  for x, t in function() return util.must(loader:next()) end do
    util.must(runtime:step(2, x, t))
    local outputs, shape = runtime:read(output, 2)
    local found, counted = cell.correct(outputs, shape, t:values(), nn.ignored(v.loss))
    right, all = right + found, all + counted
  end
  return right / all
end

-- The loss scale after the last step, and how many steps had no update; nil: the loss is not scaled, or the cell has
-- several trainings, each with a scale of its own.
local function scaling(self, runtime, run)
  local scale = not self.round and runtime:loss_scale(1)
  if scale then return scale, run.skipped end
end

-- Sets out.exponents from one more step, after the cell's runtime is closed: see exponents.lua.
local function count_exponents(self, copy, device, out)
  local of = {network = self.network, device = device, values = self.values, seed = self.seed}
  local function step(runtime)
    local steps, _ <close> = steps_of_one(self, runtime)
    local begun, reason, code = steps.begin(1)
    if not begun then return nil, reason, code end
    return steps.result()
  end
  local good, found = util.try(exponents.of, nil, of, copy, step)
  if good then out.exponents = found
  elseif util.is_interrupt(found) then error(found, 0)
  else out.status, out.reason = "error", "gradient_exponents: " .. util.text_of(found) end
end

local function finite(x) return x == x and x ~= math.huge and x ~= -math.huge end

-- Status and reason of a run: prediction and measurement must agree, losses must be finite.
local function judge(self, out)
  local predicted = self.prediction
  for _, pair in ipairs{
    {"peak", predicted.peak.bytes, out.memory.peak.bytes},
    {"allocated after a step", predicted.allocated, out.memory.used},
    {"reserved after a step", predicted.reserved, out.memory.held},
    {"in the host's memory", predicted.host, out.memory.host},
  } do
    if pair[2] ~= pair[3] then
      return "error", ("%s: predicted %d bytes, measured %d: a bug in memtide"):format(table.unpack(pair))
    end
  end
  for i, loss in ipairs(out.losses) do
    if not finite(loss) then return "diverged", ("the loss of step %d is %s"):format(i, core.number(loss)) end
  end
  return "ok"
end

local function failed(reason, code)
  return {status = code == "oom" and "oom" or "error", reason = reason, code = code}
end

-- Gives parameters the values of the training's files of weights, if it has any -> true; nil, message, code
local function start_from_weights(one, runtime)
  local given = one.weights
  if not given then return true end
  local path, options = given, {}
  if type(given) == "table" then path, options = given[1], {strict = given.strict, skip = given.skip} end
  return weights.load({runtime = runtime, network = one.network, files = one.files}, path, options)
end

-- Runs the compiled cell -> {status, reason, memory, seconds, graphs, samples, losses, accuracy, loss_scale, skipped_steps,
-- exponents}; what was not measured is nil.
-- progress(i, n) is called before step i.
function cell.run(self, progress)
  assert(self.program)
  local v = self.values
  local device = cell.device(v.device)
  local counted = v.device == "cpu" and process_memory.begin()
  local runtime, reason, code = core.runtime{programs = self.alike[1].programs, allocator = v.allocator,
    memory = self.memory, seed = self.seed}
  if not runtime then return failed(reason, code) end
  local scope <close> = runtime
  for _, one in ipairs(self.trainings) do
    local started, why, kind = start_from_weights(one, runtime)
    if not started then return failed(why, kind) end
  end
  local steps, _ <close> = (self.round and steps_of_several or steps_of_one)(self, runtime)
  local run, step_reason, step_code = measure.run(self, steps, device, progress)
  if not run then return failed(step_reason, step_code) end
  local out = {memory = with_names(self, runtime:memory()), losses = run.losses, samples = run.samples,
    device_used = device:used() or counted and process_memory.most() or nil}
  out.loss_scale, out.skipped_steps = scaling(self, runtime, run)
  local copy = v.gradient_exponents and v.mode ~= "eval" and exponents.copy(runtime, self.network)
  out.status, out.reason = judge(self, out)
  if self.eval and out.status == "ok" then out.accuracy = test_accuracy(self, runtime, self.eval) end
  local more, more_reason, more_code = run.more()
  if not more then return failed(more_reason, more_code) end
  out.seconds, out.graphs = measure.seconds(run.samples)
  local closed, left = scope:finish()
  if not closed then out.status, out.reason = "error", left end
  if copy and out.status == "ok" then count_exponents(self, copy, device, out) end
  return out
end

-- Closes the network and programs, drops the data that the cell's function has made, and lets the devices drop states
-- that were not used lately.
function cell.release(self)
  for _, class in ipairs(self.alike or {}) do
    for _, program in ipairs(class.programs) do program:close() end
  end
  for _, one in ipairs(self.trainings or {}) do one.network:close() end
  self.alike, self.eval, self.program, self.network, self.trainings, self.round = nil, nil, nil, nil, nil, nil
  if self.make_data then -- the script may hold on to what its function has returned
    self.values.data, self.make_data = self.make_data, nil
    collectgarbage()
  end
  for _, device in pairs(devices) do device:trim() end
end

return cell
