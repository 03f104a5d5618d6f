-- The commands: each is a file of lua/memtide/cli/, by which alone help, completion and the reader of options know it.
local commands = require "memtide.cli.commands"
local completion = require "memtide.cli.completion"
local tap = dofile "tests/tap.lua"

local shells = {bash = completion.bash(commands.all(), commands.options()), zsh = completion.zsh(commands.all()),
  fish = completion.fish(commands.all(), commands.options())}
for _, command in ipairs(commands.all()) do
  local name = command.name
  tap.ok(command.words and command.text ~= "", name .. " says what it takes and does")
  tap.ok(command.run or command.alone, name .. " can be run")
  local takes_script = command.words:find "SCRIPT" ~= nil and name ~= "help" and name ~= "report" -- these load it themselves
  tap.is(command.run ~= nil, takes_script, name .. ": with a script or without")
  local seen = {}
  for _, option in ipairs(command.options) do
    tap.ok(option.text and not seen[option.name] and not seen[option.letter or 1],
      ("%s --%s says what it is, and is there once"):format(name, option.name))
    seen[option.name], seen[option.letter or 0] = true, true
    tap.is(commands.option(nil, option.name), option, ("--%s is one option of all commands"):format(option.name))
    tap.ok(option.argument or not option.take, ("--%s: a switch reads nothing"):format(option.name))
  end
  for shell, text in pairs(shells) do tap.has(text, name, shell .. " completes " .. name) end
end

-- a file that is a command is one of them
local pipe <close> = assert(io.popen "ls lua/memtide/cli/*.lua")
for path in pipe:lines() do
  local module = path:match "([^/]+)%.lua$"
  local found = module ~= "cli" and require("memtide.cli." .. module) -- cli is the program
  if type(found) == "table" and found.words then
    tap.ok(commands.is_command(module), path .. " is a command")
  end
end

tap.done()
