-- Prints the man page memtide(1), made from what `memtide help` says, of the date of the last change:
-- memtide packaging/man.lua > memtide.1, from the checkout's top
local commands = require "memtide.cli.commands"
local core = require "memtide.core"
local help = require "memtide.cli.help"

-- Text as roff: a dash is a dash, a line does not begin with a control character.
local function roff(text)
  return (text:gsub("\\", "\\e"):gsub("%-", "\\-"):gsub("^([.'])", "\\&%1"):gsub("\n([.'])", "\n\\&%1"))
end

local function put(...) io.write(...) io.write "\n" end

local function put_options(list, seen)
  for _, option in ipairs(list) do
    if not seen[option] then
      seen[option] = true
      put ".TP"
      local letter = option.letter and ("\\fB\\-%s\\fR, "):format(option.letter) or ""
      local argument = option.argument and (" \\fI%s\\fR"):format(roff(option.argument)) or ""
      put(("%s\\fB\\-\\-%s\\fR%s"):format(letter, roff(option.name), argument))
      put(roff(option.text))
    end
  end
end

local function names_of(list)
  local names = {}
  for i, one in ipairs(list) do names[i] = "\\fB" .. roff(one.name) .. "\\fR" end
  return table.concat(names, ", ")
end

local changes <close> = assert(io.open "CHANGELOG.md")
put(('.TH MEMTIDE 1 "%s" "memtide %s" "User Commands"'):format(changes:read("a"):match "\n### (%S+)",
  roff(core.version:match "^[^+]*")))
put ".SH NAME"
put "memtide \\- predicts, measures and sweeps the memory of neural-network training"
put ".SH SYNOPSIS"
put ".B memtide"
put "\\fICOMMAND\\fR [\\fIOPTIONS\\fR] [\\fISCRIPT\\fR or \\fIFILES\\fR]"
put ".br"
put ".B memtide"
put "\\fISCRIPT.lua\\fR [\\fIARGUMENTS\\fR]"
put ".SH DESCRIPTION"
put "A short Lua script defines a network and the settings to sweep. memtide turns each setting into a step program,"
put "predicts its memory to the byte, runs it, and appends one CSV row per setting."
put ".SH COMMANDS"
for _, command in ipairs(commands.all()) do
  put ".TP"
  put(("\\fB%s\\fR %s"):format(command.name, roff(command.words)))
  put(roff(command.text))
  local own = {}
  for _, option in ipairs(command.options) do own[#own + 1] = {name = "--" .. option.name} end
  put(".br\nOptions: " .. names_of(own) .. ".")
end
put ".SH OPTIONS"
put_options(commands.options(), {})
put ".SH EXIT STATUS"
put(roff(help.STATUSES))
put ".SH ENVIRONMENT"
for _, one in ipairs{
  {"MEMTIDE_CUDA", "the CUDA plugin to load; none: no GPU"}, {"MEMTIDE_PLAN", "the planning library; none: none"},
  {"MEMTIDE_PICKS", "the file of picks that memtide tune writes"},
  {"OMP_NUM_THREADS, OMP_WAIT_POLICY", "the CPU's threads, and how they wait"},
  {"OMP_PROC_BIND, OMP_PLACES", "where they stay; unset: wherever the kernel finds room"},
  {"NO_COLOR", "no colours"}, {"XDG_CACHE_HOME", "where rates, calibrations and plans are kept (~/.cache)"}} do
  put(".TP\n\\fB" .. roff(one[1]) .. "\\fR\n" .. roff(one[2]))
end
put ".SH SEE ALSO"
put "The documentation beside the program, in share/doc/memtide."
