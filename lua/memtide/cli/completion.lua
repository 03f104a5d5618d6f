-- memtide completion: prints a script for bash, zsh or fish that completes commands and options, made from the same
-- tables as the help.
local offers = require "memtide.cli.offers"
local options = require "memtide.cli.options"
local util = require "memtide.base.util"

local SHELLS = {"bash", "fish", "zsh"}

local completion = {words = "SHELL", text = "completions for bash, zsh or fish: eval \"$(memtide completion bash)\"",
  options = {options.safe}, completes = {SHELL = {words = "bash zsh fish"}}}

-- Which files complete the words FILE, SCRIPT and csv of any command; a command may add its own (completes).
local KINDS = {FILE = {files = "*"}, SCRIPT = {files = "*.lua"}, csv = {files = "*.csv"}}

local function names_of(list)
  local names = {}
  for i, one in ipairs(list) do names[i] = one.name end
  return table.concat(names, " ")
end

-- What completes a command's arguments that are no options: words, and a pattern of files; "": none
local function takes(command, commands)
  local words, files = {}, {}
  for name in command.words:gsub("%-%-.*", ""):gmatch("%a+") do
    local kind = command.completes and command.completes[name] or KINDS[name] or {}
    if kind.files and kind.files ~= files[#files] then files[#files + 1] = kind.files end
    if kind.words or kind.commands then words[#words + 1] = kind.words or names_of(commands) end
  end
  return table.concat(words, " "), files[2] and "*" or files[1] or ""
end

local function has(command, option)
  for _, one in ipairs(command.options) do if one == option then return true end end
  return false
end

-- ---- bash

local BASH = [=[
_memtide() {
    # readline breaks words at "=" and ":" as well; these are words between spaces
    local line=${COMP_LINE:0:COMP_POINT} word before words= files= of= script= file known
    word=${line##*[[:space:]]} before=${line%"$word"}
    before=${before%"${before##*[![:space:]]}"} before=${before##*[[:space:]]}
    known=${word%"${word##*[=:]}"}
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        words="@COMMANDS --help --version" files='*.lua'
    else
        case $before in
@VALUES        *) case ${COMP_WORDS[1]} in
@TAKES            *) files='*' ;;
            esac ;;
        esac
    fi
    if [ -n "$of" ]; then
        for file in $COMP_LINE; do case $file in *.lua) script=$file ;; esac; done
        while IFS= read -r file; do
            if [[ $file == "$word"* ]]; then COMPREPLY+=("${file#"$known"}"); fi
        done < <(memtide --safe completion "$of" "$script" "$word" 2>/dev/null)
        if [[ ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi
        return
    fi
    case $word in -*) files= ;; esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [ -z "$files" ] && return
    while IFS= read -r file; do
        if [ -d "$file" ] || [[ $file == $files ]]; then COMPREPLY+=("$file"); fi
    done < <(compgen -f -- "$word")
}
complete -o filenames -F _memtide memtide]=]

-- commands, all: the commands and their options, as commands.all() and commands.options() return them
function completion.bash(commands, all)
  local values, taken = {}, {}
  for _, option in ipairs(all) do
    local kind = option.argument and (option.completes or {})
    if kind then
      values[#values + 1] = ("        --%s) words='%s' files='%s' of='%s' ;;\n"):format(option.name, kind.words or "",
        kind.files or "", kind.of or "")
    end
  end
  for _, command in ipairs(commands) do
    local words, files = takes(command, commands)
    local list = {words}
    for _, option in ipairs(command.options) do list[#list + 1] = "--" .. option.name end
    taken[#taken + 1] = ("            %s) words='%s' files='%s' ;;\n"):format(command.name, table.concat(list, " "),
      files)
  end
  local parts = {COMMANDS = names_of(commands), VALUES = table.concat(values), TAKES = table.concat(taken)}
  return (BASH:gsub("@(%u+)", parts))
end

-- ---- zsh

local ZSH = [==[
#compdef memtide
_memtide_offers() {
    local -a offered
    offered=("${(@f)$(memtide --safe completion $1 "${words[(r)*.lua]}" "$PREFIX" 2>/dev/null)}")
    [[ ${offered[1]} == *= ]] && compadd -S '' -a offered || compadd -a offered
}
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
if [ "$funcstack[1]" = _memtide ]; then _memtide "$@"; else compdef _memtide memtide; fi]==]

local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

-- Escapes the characters that have a meaning in zsh's specifications.
local function escaped(text) return (text:gsub("[%[%]:\\]", "\\%0")) end

-- ":name:action", where the action lists words or files
local function zsh_value(name, words, files)
  return (":%s:%s"):format(name, files ~= "" and ('_files -g "%s"'):format(files) or
    words ~= "" and ("(%s)"):format(escaped(words)) or " ")
end

local function zsh_option(option)
  local kind, name = option.completes or {}, option.argument
  local value = not name and "" or kind.of and (":%s:{_memtide_offers %s}"):format(name, kind.of) or
    zsh_value(name, kind.words or "", kind.files or "")
  return quoted(("*--%s%s[%s]%s"):format(option.name, name and "=" or "", escaped(option.text), value))
end

function completion.zsh(commands)
  local names, taken = {}, {}
  for i, command in ipairs(commands) do
    names[i] = ("        %s\n"):format(quoted(command.name .. ":" .. command.text:gsub(":", "\\:")))
    local specs = {"*" .. zsh_value("word", takes(command, commands))}
    specs[1] = quoted(specs[1])
    for _, option in ipairs(command.options) do specs[#specs + 1] = zsh_option(option) end
    taken[i] = ("        %s) arguments=(\n            %s) ;;\n"):format(command.name,
      table.concat(specs, "\n            "))
  end
  return (ZSH:gsub("@(%u+)", {COMMANDS = table.concat(names), TAKES = table.concat(taken)}))
end

-- ---- fish

local function fish_quoted(text) return "'" .. text:gsub("[\\']", "\\%0") .. "'" end

-- The argument of -a: words, or files with the pattern's ending
local function fish_words(words, files)
  if files == "" then return fish_quoted(words) end
  return fish_quoted(("(__fish_complete_suffix %s)"):format(files:match("%..*") or ""))
end

local function fish_option(option, names)
  local kind, when = option.completes, fish_quoted("__fish_seen_subcommand_from " .. names)
  local line = {"complete -c memtide -n", when, "-l", option.name}
  if option.letter then line[#line + 1] = "-s " .. option.letter end
  if option.argument then line[#line + 1] = "-x" end
  if kind and kind.of then
    line[#line + 1] = ("-a '(memtide --safe completion %s (__memtide_script) (commandline -ct) 2>/dev/null)'"):format(kind.of)
  elseif kind then line[#line + 1] = "-a " .. fish_words(kind.words or "", kind.files or "") end
  line[#line + 1] = "-d " .. fish_quoted(option.text)
  return table.concat(line, " ")
end

-- The script on the line, "" if there is none. What stands after the word is no part of it.
local FISH = [[
function __memtide_script
    set -l scripts (commandline -opc | string match -- '*.lua')
    echo -- "$scripts[1]"
end]]

function completion.fish(commands, all)
  local out = {FISH, "complete -c memtide -f", "complete -c memtide -n __fish_use_subcommand -a " .. fish_words("", "*.lua")}
  for _, command in ipairs(commands) do
    out[#out + 1] = ("complete -c memtide -n __fish_use_subcommand -a %s -d %s"):format(command.name,
      fish_quoted(command.text))
    local words, files = takes(command, commands)
    if words .. files ~= "" then
      out[#out + 1] = ("complete -c memtide -n '__fish_seen_subcommand_from %s' -a %s"):format(command.name,
        fish_words(words, files))
    end
  end
  for _, option in ipairs(all) do
    local having = {}
    for _, command in ipairs(commands) do if has(command, option) then having[#having + 1] = command end end
    out[#out + 1] = fish_option(option, names_of(having))
  end
  return table.concat(out, "\n")
end

function completion.alone(words, _, commands)
  local shell = words[1]
  if offers[shell] then
    for _, text in ipairs(offers[shell](words[2], words[3])) do print(text) end
    return 0
  end
  for _, known in ipairs(SHELLS) do
    if shell == known then
      print(completion[shell](commands.all(), commands.options()))
      return 0
    end
  end
  util.fail_usage("completion: expected bash, zsh or fish, found %s%s", shell or "nothing",
    util.meant(shell or "", SHELLS))
end

return completion
