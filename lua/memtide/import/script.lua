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
  local parts, last, whole = {}, nil, root
  for i, one in ipairs(list) do
    local text = printer.show(one.form, 2)
    if root.tag == "apply" and one.name == root.name then whole = one.form end
    local lines = {}
    for k, made in ipairs(one.locals) do lines[k] = ("  local %s = %s\n"):format(made.name, printer.show(made.form, 2)) end
    parts[i] = ("local function %s(%s)\n%s  return %s\nend\n"):format(one.name, table.concat(one.parameters, ", "), table.concat(lines), text)
    last = one.name
  end
  local body = table.concat(parts, "\n")
  if root.tag ~= "apply" then
    last = "Model"
    body = ("%slocal function Model()\n  return %s\nend\n"):format(body, printer.show(root, 2))
  end
  local names = whole.takes or {"x"}
  if flat then
    local given = table.concat(names, ", ")
    body = body .. ("\n-- logits of all tokens below each other, as the loss reads them\nlocal function Logits()\n" ..
      "  return nn.Graph{%s(), forward = function(self, %s) return self[1](%s):flatten(0, 1) end}\nend\n"):format(last,
      given, given)
    last = "Logits"
  end
  local numbers_of = {}
  for key in body:gmatch "%f[%w_]constant(%d+)%f[^%w_]" do
    if not numbers_of[key] then
      numbers_of[key], numbers_of[#numbers_of + 1] = true, constants.text("c" .. key, description.constants["c" .. key])
    end
  end
  if #numbers_of > 0 then body = table.concat(numbers_of, "\n") .. "\n" .. body end
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
