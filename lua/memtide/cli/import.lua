-- memtide import: the script of a PyTorch model.
local core = require "memtide.core"
local options = require "memtide.cli.options"
local python = require "memtide.import.python"
local script = require "memtide.import.script"
local spelling = require "memtide.import.spelling"
local terminal = require "memtide.base.terminal"
local util = require "memtide.base.util"

local fail = util.fail_usage

-- "3,224,224" or "128:int64:30522" -> {shape, type, below}
local function take_input(given, text)
  local sizes, type, below = text:match "^([%d,]+):?([%a%d]*):?(%d*)$"
  local input = {shape = {}, type = type ~= "" and type or "float32", below = math.tointeger(tonumber(below))}
  for word in (sizes or ""):gmatch "[^,]+" do input.shape[#input.shape + 1] = math.tointeger(tonumber(word)) end
  local good = #input.shape > 0 and not (sizes .. ","):find ",," and (input.type == "float32" or input.type:find "^int%d+$")
  for _, size in ipairs(input.shape) do good = good and size > 0 end
  if not good then
    fail('--input: expected the shape of one sample such as 3,224,224, or 128:int64:30522 for 128 tokens, found "%s"', text)
  end
  given.input = given.input or {}
  table.insert(given.input, input)
end

local import = {words = "MODULE:NAME or FILE.py:NAME",
  text = "a script from a PyTorch model: from torchvision.models:resnet50, or a function of a file",
  options = {
    {name = "output", letter = "o", argument = "FILE", completes = {files = "*.lua"}, text = "the script (NAME.lua)"},
    {name = "args", argument = "TEXT", text = "the constructor's arguments, as in Python: num_classes=10"},
    {name = "input", argument = "SHAPE", take = take_input,
      text = "one sample, without the batch (3,224,224); tokens: 128:int64:30522, with how many there are"},
    {name = "python", argument = "PROGRAM", completes = {files = "*"}, text = "the Python that has torch (python3)"},
    {name = "weights", text = "also NAME.safetensors, the state_dict"},
    {name = "check", text = "also one step in both: the largest differences of loss, outputs and gradients"},
    {name = "description", argument = "FILE", completes = {files = "*.json"},
      text = "what PyTorch said of the model: written, or read if no model is named"},
  }}

local function read_file(path)
  local file, why = io.open(path, "rb")
  local text = file and file:read "a"
  if file then file:close() end
  return text or error(util.failure(("cannot read %s: %s"):format(path, why or "it is no file"), "file"), 0)
end

local function say_error(problem)
  local where = problem.where ~= "" and (" (%s)"):format(problem.where) or ""
  error(util.failure(terminal.harmless(problem.message .. where), problem.kind == "usage" and "usage" or "script"), 0)
end

local function times(count) return count == 1 and "once" or ("%d times"):format(count) end

-- Raises with everything that the script cannot say.
local function refuse(source, problems)
  local lines = {("%s: memtide cannot say everything that it calls:"):format(source)}
  for _, one in ipairs(problems) do
    local gives = one.elements > 0 and ("; gives %d numbers of each sample"):format(one.elements) or "; takes no memory of its own"
    lines[#lines + 1] = terminal.harmless(("  %s: %s, %s%s"):format(one.where ~= "" and one.where or "-", one.what, times(one.count),
      gives))
  end
  error(util.failure(table.concat(lines, "\n"), "unsupported"), 0)
end

local function request_of(source, given)
  local leaves = util.sorted_keys(spelling.classes())
  return {source = source, args = given.args or "", inputs = given.input, leaves = leaves}
end

function import.alone(words, given)
  if #words > 1 or #words == 0 and not given.description then
    fail("import: expected one MODULE:NAME or FILE.py:NAME, found %d", #words)
  end
  local source = words[1] or given.description
  given.input = given.input or {{shape = {3, 224, 224}, type = "float32"}}
  if #given.input > 1 then fail("import: --input: a network has one input here, found %d", #given.input) end
  local name = (words[1] and source:match "([%w_]+)$" or source:match "([^/]+)$":gsub("%.json$", "")):gsub("[^%w_-]", "_")
  local path = given.output or name .. ".lua"
  local request = request_of(source, given)
  if given.weights then request.weights = path:gsub("%.lua$", "") .. ".safetensors" end
  local text = words[1] and python.describe(given.python or "python3", request) or read_file(given.description)
  local description = util.must(core.json(text, words[1] and "the description" or given.description))
  if description.error then say_error(description.error) end
  if words[1] and given.description then
    util.replace(given.description, function(write) write(text) end)
  end
  request.inputs = description.inputs
  local written, problems, notes = script.write(description, request, {name = name, command = ("%s, with torch %s"):format(
    source, description.torch)})
  if not written then refuse(source, problems) end
  for _, note in ipairs(notes) do given.say(terminal.harmless(note)) end
  util.replace(path, function(write) write(written) end)
  given.say(("%s: memtide predict %s"):format(path, path))
  return 0
end

return import
