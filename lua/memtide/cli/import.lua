-- memtide import DIR: Hugging Face's config.json, and weights if they are there, as a script.
local core = require "memtide.core"
local first_cell = require "memtide.cli.first_cell"
local hf = require "memtide.net.hf"
local script = require "memtide.sweep.script"
local util = require "memtide.base.util"

local import = {words = "DIR",
  text = "a script of Hugging Face's config.json, which loads the safetensors beside it",
  options = {{name = "output", letter = "o", argument = "FILE", completes = {files = "*.lua"},
    text = "where the script goes (default: standard output)"}},
  completes = {DIR = {files = "*"}}}

-- Imports a folder: writes the script, and says what it needs.
function import.folder(path, given)
  local text, notes = hf.import(path)
  util.replace(given.output or "/dev/stdout", function(write) write(text) end)
  for _, note in ipairs(notes) do given.say(note) end
  local experiment = script.load_experiment(given.output or "(standard output)", {}, text)
  local first = first_cell(experiment, {set = {}, say = function() end})
  given.say(("%s: %d parameters; %s needs %s"):format(first.model_name, first.network:parameters(), first.name,
    util.show_bytes(first.prediction.peak.bytes)))
  return 0
end

function import.alone(words, given)
  if #words ~= 1 then util.fail_usage("import: expected one folder, found %d words", #words) end
  core.check_path(words[1], "import")
  return import.folder(words[1], given)
end

return import
