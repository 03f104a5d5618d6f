-- memtide completion: what bash, zsh and fish offer behind a half-written word, made of the tables that help is made
-- of.
local plan = require "memtide.sweep.selection"
local usage = require "memtide.cli.usage"
local util = require "memtide.base.util"

local completion = {}

-- What stands for an option's argument, or for a command's words, in the help: which words may be there, or which
-- files. Of others nothing is known.
local KINDS = {FILE = {files = "*"}, D = {words = "cpu cuda:0"}, SCRIPT = {files = "*.lua"}, csv = {files = "*.csv"},
  SHELL = {words = "bash zsh fish"}, WORDS = {words = table.concat(plan.retry_words, " ")}, COMMAND = {commands = true}}

local function names_of(list)
  local names = {}
  for i, one in ipairs(list) do names[i] = one[1] end
  return table.concat(names, " ")
end

local function options_of(command, options)
  local list = {}
  for _, option in ipairs(options) do if usage.has(command, option) then list[#list + 1] = option end end
  return list
end

-- What a command takes beside options -> its words, and the files; "": none
local function takes(use, uses)
  local words, files = {}, {}
  for name in use[2]:gsub("%-%-.*", ""):gmatch("%a+") do
    local kind = KINDS[name] or {}
    if kind.files and kind.files ~= files[#files] then files[#files + 1] = kind.files end
    if kind.words or kind.commands then words[#words + 1] = kind.words or names_of(uses) end
  end
  return table.concat(words, " "), files[2] and "*" or files[1] or ""
end

-- ---- bash

local BASH = [=[
_memtide() {
    local word=${COMP_WORDS[COMP_CWORD]} words= files= file
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        words="@COMMANDS --help --version" files='*.lua'
    else
        case ${COMP_WORDS[COMP_CWORD-1]} in
@VALUES        *) case ${COMP_WORDS[1]} in
@TAKES            *) files='*' ;;
            esac ;;
        esac
    fi
    case $word in -*) files= ;; esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [ -z "$files" ] && return
    while IFS= read -r file; do
        if [ -d "$file" ] || [[ $file == $files ]]; then COMPREPLY+=("$file"); fi
    done < <(compgen -f -- "$word")
}
complete -o filenames -F _memtide memtide]=]

function completion.bash(uses, options)
  local values, taken = {}, {}
  for _, option in ipairs(options) do
    local kind = option[3] and (KINDS[option[3]] or {})
    if kind then
      values[#values + 1] = ("        --%s) words='%s' files='%s' ;;\n"):format(option[1], kind.words or "",
        kind.files or "")
    end
  end
  for _, use in ipairs(uses) do
    local words, files = takes(use, uses)
    local list = {words}
    for _, option in ipairs(options_of(use[1], options)) do list[#list + 1] = "--" .. option[1] end
    taken[#taken + 1] = ("            %s) words='%s' files='%s' ;;\n"):format(use[1], table.concat(list, " "), files)
  end
  local parts = {COMMANDS = names_of(uses), VALUES = table.concat(values), TAKES = table.concat(taken)}
  return (BASH:gsub("@(%u+)", parts))
end

-- ---- zsh

local ZSH = [[
#compdef memtide
_memtide() {
    local -a commands arguments
    commands=(
@COMMANDS    )
    if (( CURRENT == 2 )); then
        _describe command commands
        _files -g '*.lua'
        return
    fi
    case $words[2] in
@TAKES        *) arguments=('*:file:_files') ;;
    esac
    shift words
    (( CURRENT-- ))
    _arguments $arguments
}
if [ "$funcstack[1]" = _memtide ]; then _memtide "$@"; else compdef _memtide memtide; fi]]

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

-- Text inside of a specification, where these signs mean something
local function plain(text) return (text:gsub("[%[%]:\\]", "\\%0")) end

-- ":name:what may be there"
local function zsh_value(name, words, files)
  return (":%s:%s"):format(name, files ~= "" and ('_files -g "%s"'):format(files) or
    words ~= "" and ("(%s)"):format(plain(words)) or " ")
end

local function zsh_option(option)
  local kind = KINDS[option[3]] or {}
  local value = option[3] and zsh_value(option[3], kind.words or "", kind.files or "") or ""
  return quoted(("*--%s%s[%s]%s"):format(option[1], option[3] and "=" or "", plain(option[4]), value))
end

function completion.zsh(uses, options)
  local commands, taken = {}, {}
  for i, use in ipairs(uses) do
    commands[i] = ("        %s\n"):format(quoted(use[1] .. ":" .. use[3]:gsub(":", "\\:")))
    local specs = {"*" .. zsh_value("word", takes(use, uses))}
    specs[1] = quoted(specs[1])
    for _, option in ipairs(options_of(use[1], options)) do specs[#specs + 1] = zsh_option(option) end
    taken[i] = ("        %s) arguments=(\n            %s) ;;\n"):format(use[1], table.concat(specs, "\n            "))
  end
  return (ZSH:gsub("@(%u+)", {COMMANDS = table.concat(commands), TAKES = table.concat(taken)}))
end

-- ---- fish

local function fish_quoted(text) return "'" .. text:gsub("[\\']", "\\%0") .. "'" end

-- What -a takes: words, or files that end alike
local function fish_words(words, files)
  if files == "" then return fish_quoted(words) end
  return fish_quoted(("(__fish_complete_suffix %s)"):format(files:match("%..*") or ""))
end

local function fish_option(option, commands)
  local kind, when = KINDS[option[3]], fish_quoted("__fish_seen_subcommand_from " .. commands)
  local line = {"complete -c memtide -n", when, "-l", option[1]}
  if option[2] then line[#line + 1] = "-s " .. option[2] end
  if option[3] then line[#line + 1] = "-x" end
  if kind then line[#line + 1] = "-a " .. fish_words(kind.words or "", kind.files or "") end
  line[#line + 1] = "-d " .. fish_quoted(option[4])
  return table.concat(line, " ")
end

function completion.fish(uses, options)
  local out = {"complete -c memtide -f", "complete -c memtide -n __fish_use_subcommand -a " .. fish_words("", "*.lua")}
  for _, use in ipairs(uses) do
    out[#out + 1] = ("complete -c memtide -n __fish_use_subcommand -a %s -d %s"):format(use[1], fish_quoted(use[3]))
    local words, files = takes(use, uses)
    if words .. files ~= "" then
      out[#out + 1] = ("complete -c memtide -n '__fish_seen_subcommand_from %s' -a %s"):format(use[1],
        fish_words(words, files))
    end
  end
  for _, option in ipairs(options) do
    local commands = {}
    for _, use in ipairs(uses) do if usage.has(use[1], option) then commands[#commands + 1] = use end end
    out[#out + 1] = fish_option(option, names_of(commands))
  end
  return table.concat(out, "\n")
end

-- uses, options: the command line's tables
function completion.main(shell, uses, options)
  local make = {bash = completion.bash, zsh = completion.zsh, fish = completion.fish}
  if make[shell] then
    print(make[shell](uses, options))
    return 0
  end
  error(util.failure(("completion: expected bash, zsh or fish, found %s%s"):format(shell or "nothing",
    util.meant(shell or "", util.sorted_keys(make))), "usage"), 0)
end

return completion
