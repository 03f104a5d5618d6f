-- The script of a description.
local constants = require "memtide.import.constants"
local functions = require "memtide.import.functions"
local model = require "memtide.import.model"
local printer = require "memtide.import.print"

local script = {}

local TIMES = [[
-- n layers of the same kind
local function times(n, make)
  local list = {}
  for i = 1, n do list[i] = make() end
  return list
end
]]

local function numbers(list) return "{" .. table.concat(list, ", ") .. "}" end

-- The experiment's `input`: a shape, or shapes by the names of forward's arguments
local function input_text(inputs, names)
  if #inputs == 1 then return numbers(inputs[1].shape) end
  local parts = {}
  for i, one in ipairs(inputs) do
    local tokens = one.below and (", tokens = %d"):format(one.below) or ""
    parts[i] = ("%s = {%s%s}"):format(names[i], table.concat(one.shape, ", "), tokens)
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

-- What the experiment says of the network's outputs, by the description's task: its data, the loss, and are the tokens
-- of all samples put below each other?
local TASKS = {
  tokens = function(shape)
    return ("target = {%d}, classes = %d"):format(shape[1], shape[2]), "CrossEntropyLoss", true
  end,
  classes = function(shape) return ("classes = %d"):format(shape[1]), "CrossEntropyLoss" end,
  values = function(shape) return "target = " .. numbers(shape), "MSELoss" end,
}

-- The text of the script's functions
local function functions_text(list)
  local parts = {}
  for i, one in ipairs(list) do
    local lines = {}
    for k, made in ipairs(one.locals) do lines[k] = ("  local %s = %s\n"):format(made.name, printer.show(made.form, 2)) end
    parts[i] = ("local function %s(%s)\n%s  return %s\nend\n"):format(one.name, table.concat(one.parameters, ", "),
      table.concat(lines), printer.show(one.form, 2))
  end
  return table.concat(parts, "\n")
end

-- The text of all functions, the name of the one that makes the network, and the names of its forward's arguments. root: the network's
-- form, a call of one of these functions or a form of its own
local function network_text(list, root)
  local body, whole, name = functions_text(list), root, "Model"
  for _, one in ipairs(list) do
    if root.tag == "apply" and one.name == root.name then whole, name = one.form, one.name end
  end
  if root.tag ~= "apply" then body = ("%slocal function Model()\n  return %s\nend\n"):format(body, printer.show(root, 2)) end
  return body, name, whole.takes or {"x"}
end

local LOGITS = [[

-- logits of all tokens below each other, as the loss reads them
local function Logits()
  return nn.Graph{%s(), forward = function(self, %s) return self[1](%s):flatten(0, 1) end}
end
]]

-- The statements that make the constants that the body names, in the order in which it does
local function constants_text(body, described)
  local parts = {}
  for key in body:gmatch "%f[%w_]constant(%d+)%f[^%w_]" do
    if not parts[key] then
      parts[key] = constants.text("c" .. key, described["c" .. key])
      parts[#parts + 1] = parts[key]
    end
  end
  return #parts > 0 and table.concat(parts, "\n") .. "\n" or ""
end

-- description: of the exporter; options: {name, title, weights = a path or nil}
-- -> the text; nil, {problem, ...}, which say what the network has that a script cannot say; and notes
function script.write(description, options)
  local read = model.read(description)
  local list, root = functions(read)
  if #read.problems > 0 then return nil, read.problems, read.notes end
  local outputs = description.outputs
  if #outputs[1] == 0 then
    return nil, {{what = "an output of one number for each sample and no dimension (expected y.unsqueeze(1))", count = 1, elements = 1, where = ""}}
  end
  local says, criterion, flat = TASKS[description.task](outputs[1])
  local loss = (("nn.%s()"):format(criterion) .. " + "):rep(#outputs):sub(1, -4)
  local body, last, names = network_text(list, root)
  if flat then
    local given = table.concat(names, ", ")
    body, last = body .. LOGITS:format(last, given, given), "Logits"
  end
  body = constants_text(body, description.constants) .. body
  local uses_f = body:find "F%.%l" and "local F = nn.functional\n" or ""
  local helpers = printer.uses_times(body) and TIMES .. "\n" or ""
  local head = {options.title}
  for _, one in ipairs(read.differs) do
    head[#head + 1], read.notes[#read.notes + 1] = one, one
  end
  return ([[
-- %s
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
%s
%s%s
return mt.experiment{
  name = "%s", model_name = "%s", model = %s, input = %s, %s,
  loss = %s, optimizer = optim.SGD{lr = 0.01, momentum = 0.9},%s
  sweep = {{"batch", {4, 16}}, {"precision", {"fp32", "amp_bf16"}}},
  steps = 3, warmup = 1,
}
]]):format(table.concat(head, "\n-- "), uses_f, helpers, body, options.name, options.name, last,
    input_text(description.inputs, names), says, loss,
    options.weights and (" weights = %q,"):format(options.weights) or ""), {}, read.notes
end

return script
