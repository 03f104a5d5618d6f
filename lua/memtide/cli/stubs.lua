-- memtide stubs: what an editor's language server (LuaLS, EmmyLua) reads to know mt: annotations, made of the tables that
-- the checks read themselves, so that no list is written twice.
local claims = require "memtide.sweep.claims"
local core = require "memtide.core"
local countings = require "memtide.net.countings"
local data = require "memtide.net.data"
local digits = require "memtide.digits"
local experiment = require "memtide.sweep.experiment"
local literal = require "memtide.base.literal"
local lr_schedule = require "memtide.net.lr_schedule"
local model = require "memtide.net.model"
local mt = require "memtide"
local multi_trainer = require "memtide.net.multi_trainer"
local nn = require "memtide.net.nn"
local options = require "memtide.cli.options"
local report = require "memtide.results.report"
local rule = require "memtide.net.rule"
local script = require "memtide.sweep.script"
local settings = require "memtide.net.settings"
local snapshot = require "memtide.results.snapshot"
local specs = require "memtide.net.specs"
local trainer = require "memtide.net.trainer"
local util = require "memtide.base.util"

local CONFIG = ".luarc.json"

local stubs = {words = "", text = "annotations for editors: memtide.lua in a folder, and a " .. CONFIG .. " that names it",
  options = {options.output}}

-- Classes that no table has: what is made, and what is done with it
local HEAD = [[
---@meta memtide
-- Made by memtide stubs of memtide %s: write no change here, run it again.

---A layer or a network. In a graph's forward function it is called with values.
---@class memtide.Layer
---@operator call(...): memtide.Value
---@field parameters fun(self: memtide.Layer): memtide.Parameters for an optimizer, as PyTorch's
---@field freeze fun(self: memtide.Layer): memtide.Layer requires_grad_(False), for this layer and all layers in it
---@field unfreeze fun(self: memtide.Layer): memtide.Layer
---@field [any] any a graph's children by name

---A value in a graph's forward function
---@class memtide.Value
---@operator add(any): memtide.Value
---@operator sub(any): memtide.Value
---@operator mul(any): memtide.Value
---@operator div(any): memtide.Value
---@operator pow(any): memtide.Value
---@operator unm: memtide.Value
---@field [any] any

---A loss; ce + 0.3 * ce is the loss of the first output plus that of the second.
---@class memtide.Loss
---@operator add(memtide.Loss): memtide.Loss
---@operator mul(number): memtide.Loss

---@class memtide.Optimizer
---@class memtide.Schedule
---@class memtide.Dataset
---@class memtide.Parameters
---@field of memtide.Layer

]]

-- ---- types, from the specs of layers and optimizers

-- An int is a number here: servers take 4 * width for a number that may have a fraction, and would underline it.
local TYPES = {int = "number", float = "number", bool = "boolean", pair = "number|number[]", floats = "number[]",
  list = "number|number[]|number[][]", each = "number|number[]", text = "string"}

local function type_of_spec(text)
  local parts = {}
  for word in text:gmatch "[^|]+" do parts[#parts + 1] = TYPES[word] or literal.of(word) end
  return table.concat(parts, "|")
end

-- The options of a spec, {{name =, type =, default = text or nil, named = only by name}, ...}
local function options_of(spec)
  local list, named = {}, false
  for word in spec:gmatch "%S+" do
    local name, kind, default = word:match "^([^:]+):([^=]+)=?(.*)$"
    if name then
      list[#list + 1] = {name = name, type = type_of_spec(kind), default = default ~= "" and default or nil, named = named}
    else named = true end
  end
  return list
end

-- ---- types, from the checks: those of the samples that a key takes

local THREAD = coroutine.create(print) -- no key takes one: what was expected is then said

local function samples()
  local list = {{"number", 1}, {"number", 0.5}, {"boolean", true}, {"string", "x"}, {"string", "1MiB"}, {"function", print},
    {"memtide.Layer", mt.nn.Identity()}, {"memtide.Loss", mt.nn.MSELoss()}, {"memtide.Optimizer", mt.optim.SGD()},
    {"memtide.Schedule", mt.optim.ExponentialLR(1)}, {"memtide.Dataset", mt.data.random{count = 1, shape = {1}, classes = 1}},
    {"table", {}}, {"table", {1}}, {"table", {"x"}}, {"table", {x = {}}}}
  return list
end

-- Words that a key may take: the setting's own, those of countings, and that of batch
local function words_of(key)
  local words = {"max", table.unpack(countings.names)}
  return table.move(settings.known[key] and settings.known[key].words or {}, 1, 64, #words + 1, words)
end

-- The type of a key of an experiment, and what it means
local function type_of_key(key, known)
  local types, seen = {}, {}
  local function try(name, value)
    if not seen[name] and not experiment.problem(key, value) then seen[name], types[#types + 1] = true, name end
  end
  for _, sample in ipairs(known) do try(sample[1], sample[2]) end
  local open = seen.string and not settings.known[key] or not experiment.problem(key, "some text")
  for _, word in ipairs(open and {} or words_of(key)) do try(literal.of(word), word) end
  return #types > 0 and table.concat(types, "|") or "any"
end

local function text_of_key(key)
  local setting = settings.known[key]
  if not setting then return (experiment.problem(key, THREAD):match "expected (.*), found" or ""):gsub("%s+", " ") end
  return ("%s%s (default %s)"):format(setting.text:gsub("%s+", " "), setting.unit ~= "" and ", in " .. setting.unit or "",
    literal.of(setting.default))
end

-- ---- lines

-- Names that are no words for a parameter or a field
local KEYWORDS = {["end"] = true, ["repeat"] = true, ["function"] = true, ["for"] = true, ["in"] = true}
local function parameter(name) return KEYWORDS[name] and name .. "_" or name end
local function field_name(name)
  if math.type(name) then return ("[%d]"):format(name) end
  return KEYWORDS[name] and ('["%s"]'):format(name) or name
end

local Stub = {}
Stub.__index = Stub

function Stub:line(format, ...)
  self[#self + 1] = (select("#", ...) > 0 and format:format(...) or format) .. "\n"
end

-- Ends the class of a table in which no other name may stand: (exact) alone is not looked at where the table is an argument.
local NO_OTHER = "---@field [string] nil there is no such name"

function Stub:fields(list)
  for _, one in ipairs(list) do
    local text = one.text or one.default and "default " .. one.default or ""
    self:line("---@field %s? %s %s", field_name(one.name), one.type, text)
  end
end

-- A class of options: fields = {{name =, type =, default =, text =}, ...}; open: other keys may stand there
function Stub:class(name, fields, open)
  self:line("---@class %s%s", open and "" or "(exact) ", name)
  self:fields(fields)
  self:line(open and "---@field [any] any" or NO_OTHER)
  self:line ""
end

-- "in_features, out_features, bias=true, *, x=0", as Python writes it
local function signature(list)
  local parts, star = {}, false
  for _, one in ipairs(list) do
    if one.named and not star then star, parts[#parts + 1] = true, "*" end
    parts[#parts + 1] = one.default and one.name .. "=" .. one.default or one.name
  end
  return table.concat(parts, ", ")
end

-- A function that takes the list's arguments in place, by name in a table that comes last, or both. first: parameters
-- before them, {{name, type}, ...}.
function Stub:constructor(place, list, class, result, first)
  local names = {}
  for _, one in ipairs(first or {}) do
    self:line("---@param %s %s", one[1], one[2])
    names[#names + 1] = one[1]
  end
  for _, one in ipairs(list) do
    if not one.named then
      names[#names + 1] = parameter(one.name)
      self:line("---@param %s? %s|%s", names[#names], one.type, class)
    end
  end
  self:line("---@param options? %s", class)
  self:line("---@return %s", result)
  self:line("function %s(%s%soptions) end\n", place, table.concat(names, ", "), #names > 0 and ", " or "")
end

-- A function of which the program knows no more than its parameters
function Stub:plain(place, f, result)
  local names, info = {}, debug.getinfo(f, "u")
  for i = 1, info.nparams do names[i] = parameter(debug.getlocal(f, i)) end
  for _, name in ipairs(names) do self:line("---@param %s? any", name) end
  if info.isvararg then names[#names + 1] = "..." end
  self:line("---@return %s", result)
  self:line("function %s(%s) end\n", place, table.concat(names, ", "))
end

-- ---- mt.nn

-- What a layer of each role reads: core/network/layers.def
local READS = {l = "of one value (N, ..., features)", a = "of one value of any shape",
  i = "of channels and places, (N, C, L) or (N, C, H, W)",
  m = "of one or several values", t = "of values of a graph", g = "of values of a graph", c = "a container of layers",
  h = "a container of layers", s = "a loss", f = "a loss of a script's own function"}
local TIED = {name = "tied", type = "memtide.Layer", text = "shares its first parameter with this layer"}

-- Sizes for the options that a layer needs, and inputs, of which the first that go together are the layer's example
local SIZES = {{4, 6, 3}, {4, 2, 8}, {2, 4, 2}, {1, 1, 4}}
local INPUTS = {i = {{4, 8, 8}, {4, 8}}, a = {{4, 8, 8}, {5, 4}, {4}}, other = {{4}, {5, 4}, {4, 8, 8}}}
local BATCH = 2

local function tuple(list) return "(" .. table.concat(list, ", ") .. ")" end

-- "; Conv2d(4, 6, 3) of (2, 4, 8, 8) gives (2, 6, 6, 6)", as the program finds it; "": no example fits
local function example(name, list, role)
  local needed = 0
  for _, one in ipairs(list) do if not one.default and not one.named then needed = needed + 1 end end
  for _, input in ipairs(INPUTS[role] or INPUTS.other) do
    for _, sizes in ipairs(needed <= 3 and SIZES or {}) do
      local good, network = pcall(function()
        return nn.network(mt.nn[name](table.unpack(sizes, 1, needed)), mt.nn.MSELoss(), BATCH, input)
      end)
      if good then
        local _, output = network:shapes()
        return ("; %s%s of %s gives %s"):format(name, tuple(table.move(sizes, 1, needed, 1, {})),
          tuple{BATCH, table.unpack(input)}, tuple(output))
      end
    end
  end
  return ""
end

function Stub:container(name, list)
  local class = "memtide.nn." .. name
  self:line("---@class %s%s", name == "Graph" and "" or "(exact) ", class)
  if name ~= "Graph" then self:line "---@field [integer] memtide.Layer|table a layer, or {\"name\", layer}" end
  self:fields(list)
  self:line(name == "Graph" and "---@field forward? function\n---@field [any] any" or NO_OTHER)
  self:line ""
  self:line("---%s(%s): a container of layers", name, signature(list))
  self:line("---@param layers %s", class)
  self:line "---@return memtide.Layer"
  if name ~= "Graph" then self:line "---@overload fun(...: memtide.Layer|table): memtide.Layer" end
  self:line("function nn.%s(layers) end\n", name)
end

-- The layers by PyTorch's names, and the functions of the same names in nn.functional's way
function Stub:nn()
  local roles, done, of_function = {}, {functional = true}, {}
  for _, kind in ipairs(core.layer_kinds()) do
    roles[kind.name] = kind
    of_function[nn.function_name(kind.name)] = kind.name
  end
  self:line "---@class memtide.nn\nlocal nn = {}\n"
  for _, name in ipairs(util.sorted_keys(mt.nn)) do
    local kind = roles[name] or specs.of[name] and {role = "l", spec = specs.of[name]}
    if kind and kind.role:find "[ch]" then self:container(name, options_of(kind.spec))
    elseif kind then
      local loss, list, class = kind.role:find "[sf]", options_of(kind.spec), "memtide.nn." .. name
      local fields = table.move(list, 1, #list, 1, {})
      if not loss then fields[#fields + 1] = TIED end
      self:class(class, fields)
      self:line("---%s(%s): %s%s", name, signature(list), roles[name] and READS[kind.role] or "a network of layers",
        loss and "" or example(name, list, kind.role))
      self:constructor("nn." .. name, list, class, loss and "memtide.Loss" or "memtide.Layer",
        kind.role == "f" and {{"forward", "fun(x: memtide.Value, y: any): memtide.Value"}} or nil)
    end
  end
  for _, name in ipairs(util.sorted_keys(mt.nn)) do
    local made = of_function[name]
    if roles[name] or specs.of[name] or done[name] then goto continue end
    if made and roles[made].role:find "[lai]" then
      self:line("---%s(x, %s)", name, signature(options_of(roles[made].spec)))
      self:constructor("nn." .. name, options_of(roles[made].spec), "memtide.nn." .. made, "memtide.Value",
        {{"x", "memtide.Value"}})
    elseif type(mt.nn[name]) == "function" then self:plain("nn." .. name, mt.nn[name], "any") end
    ::continue::
  end
  self:line "nn.functional = nn\n"
end

-- ---- mt.optim

function Stub:optim()
  self:line "---@class memtide.optim\nlocal optim = {}\n"
  for _, kind in ipairs(core.optimizer_kinds()) do
    local list, class = options_of(kind.spec), "memtide.optim." .. kind.name
    local own = kind.name == "Rule" -- its table has the rule's functions and numbers besides
    self:class(class, list, own)
    self:line("---%s(%s)", kind.name, signature(list))
    self:constructor("optim." .. kind.name, own and {{name = "rule", type = "table"}} or list, class .. "|memtide.Parameters",
      "memtide.Optimizer")
  end
  for _, name in ipairs(util.sorted_keys(rule.functions)) do self:plain("optim." .. name, rule.functions[name], "any") end
  for _, name in ipairs(util.sorted_keys(lr_schedule.kinds)) do
    local names, defaults, _, places = table.unpack(lr_schedule.kinds[name], 1, 4)
    local list, class = {}, "memtide.optim." .. name
    for i, argument in ipairs(names) do
      local default = defaults[argument]
      list[i] = {name = argument, named = i > (places or #names), type = type(default) == "number" and "number" or
        type(default) == "string" and "string" or "any", default = default ~= nil and literal.of(default or "none") or nil}
    end
    local fields = table.move(list, 1, #list, 1, {})
    fields[#fields + 1] = {name = "every", type = "number", default = "1"}
    self:class(class, fields)
    self:line("---%s(%s)", name, signature(list))
    self:constructor("optim." .. name, list, class, "memtide.Schedule")
  end
  self:line "optim.lr_scheduler = optim\n"
end

-- ---- tables of keys

-- Keys that are lists, checked by functions of their own
local LISTS = {sweep = "table[]", cases = "memtide.Case[]", claims = "memtide.Claim[]", options = "table[]"}
local LIST_TEXTS = {sweep = '{"axis", {value, ...}}, ...', cases = '{case = "name", setting = value, ...}, ...',
  claims = "what is said of the cells, judged by the rows", options = '{"name", default, "what it is"}, ...'}

-- The fields of an experiment's keys; of other keys no more is known than the name.
local function fields_of(keys, known, is_of_experiment)
  local list = {}
  for i, key in ipairs(keys) do
    if is_of_experiment[key] and not LISTS[key] then
      list[i] = {name = key, type = type_of_key(key, known), text = text_of_key(key)}
    else list[i] = {name = key, type = is_of_experiment[key] and LISTS[key] or "any", text = LIST_TEXTS[key]} end
  end
  return list
end

function Stub:tables()
  local known, is_key = samples(), {}
  for _, keys in pairs(experiment.keys) do for _, key in ipairs(keys) do is_key[key] = true end end
  self:class("memtide.Claim", fields_of(claims.keys, known, {}))
  self:class("memtide.Case", fields_of(experiment.keys.case, known, is_key), true)
  self:class("memtide.Experiment", fields_of(experiment.keys.experiment, known, is_key))
  self:class("memtide.Trainer.options", fields_of(trainer.keys, known, is_key))
  self:class("memtide.Program", fields_of(multi_trainer.keys.program, known, is_key))
  self:class("memtide.Joint", fields_of(multi_trainer.keys.all, known, is_key))
  self:class("memtide.Snapshot", fields_of(snapshot.keys, known, {}))
  self:line "---@class memtide.Trainer"
  for _, name in ipairs(util.sorted_keys(trainer.methods)) do
    if not name:find "^__" then self:line("---@field %s fun(self: memtide.Trainer, ...): ...", name) end
  end
  self:line ""
end

function Stub:data()
  self:line "---@class memtide.data\nlocal data = {}\n"
  for _, name in ipairs(util.sorted_keys(mt.data)) do
    local result = data.keys[name] and name ~= "loader" and "memtide.Dataset" or "any"
    if data.keys[name] then
      self:class("memtide.data." .. name, fields_of(data.keys[name], {}, {}))
      self:line("---@param options memtide.data.%s\n---@return %s\nfunction data.%s(options) end\n", name, result, name)
    elseif type(mt.data[name]) == "function" then self:plain("data." .. name, mt.data[name], result) end
  end
end

function Stub:models()
  self:line "---@class memtide.models\nlocal models = {}\n"
  for _, name in ipairs(util.sorted_keys(model.defaults)) do
    local defaults, fields = model.defaults[name], {}
    for i, key in ipairs(util.sorted_keys(defaults)) do
      fields[i] = {name = key, type = type(defaults[key]), default = literal.of(defaults[key])}
    end
    self:class("memtide.models." .. name, fields)
    self:line("---%s{%s}", name, signature(fields))
    self:line("---@param options? memtide.models.%s\n---@return memtide.Layer\nfunction models.%s(options) end\n", name, name)
  end
end

-- Functions of mt itself that take a table of keys: {class, result}
local TAKE = {experiment = {"memtide.Experiment", "any"}, trainer = {"memtide.Trainer.options", "memtide.Trainer"},
  joint = {"memtide.Joint", "any"}}

function Stub:module()
  self:line "---@class memtide\nlocal mt = {}\n"
  for _, name in ipairs(util.sorted_keys(mt)) do
    local value, take = mt[name], TAKE[name]
    if take then
      self:line("---@param options %s\n---@return %s\n---@return string? why not, where it is nil", take[1], take[2])
      self:line("function mt.%s(options) end\n", name)
    elseif self[name] and type(value) == "table" then self:line("mt.%s = %s\n", name, name)
    elseif type(value) == "function" then self:plain("mt." .. name, value, "any")
    else self:line("---@type %s\nmt.%s = nil\n", type(value), name) end
  end
  self:line "return mt"
end

-- memtide.digits
function Stub:digits()
  self:line "---@meta memtide.digits\nlocal digits = {}\n"
  for _, name in ipairs(util.sorted_keys(digits)) do
    if type(digits[name]) == "function" then self:plain("digits." .. name, digits[name], "any") end
  end
  self:line "return digits"
end

-- The text of the annotations of memtide
function stubs.annotations()
  local out = setmetatable({HEAD:format(mt.version)}, Stub)
  out:tables()
  out:nn()
  out:optim()
  out:data()
  out:models()
  out:module()
  return table.concat(out)
end

-- What LuaLS and EmmyLua read in a project's folder
local function config(folder)
  local values = {["runtime.version"] = "Lua 5.4", ["workspace.library"] = {folder}}
  return report.json(values, util.sorted_keys(values)) .. "\n"
end

function stubs.alone(words, given)
  if #words > 0 then util.fail_usage('stubs: expected no words, found "%s"', words[1]) end
  local folder = given.output or ".memtide"
  util.must(core.make_folder(folder))
  util.must(core.make_folder(folder .. "/memtide"))
  util.replace(folder .. "/memtide.lua", function(write) write(stubs.annotations()) end)
  util.replace(folder .. "/memtide/digits.lua", function(write)
    local out = setmetatable({}, Stub)
    out:digits()
    write(table.concat(out))
  end)
  given.say(("wrote %s/memtide.lua"):format(folder))
  if script.exists(CONFIG) then
    given.say(('%s is there already: its "workspace.library" must name "%s"'):format(CONFIG, folder))
  else
    util.replace(CONFIG, function(write) write(config(folder)) end)
    given.say("wrote " .. CONFIG)
  end
  return 0
end

return stubs
