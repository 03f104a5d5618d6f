-- What a worker and its parent say to each other, each message a table that wire.lua sends.
--
--   parent   {path, text, args, safe, purpose, options, device}, first of all: the script's text as the parent read it,
--            is it under --safe, what selection.new takes, the device for all cells (nil: that of each one's settings)
--   worker   ready, or refused
--   parent   {k, implied} for each cell; implied: why it cannot fit, where another cell has shown it
--   worker   what it is, and its row piece by piece: built, columns, samples, done; or built, skipped
--
--   parent   {probe = true} instead of all this
--   worker   devices
local protocol = {}

-- What a worker says: {word, names of what stands in it}; of_cell: of a cell; answer: what the parent's answer holds;
-- most: a longer list is told in several messages (the parent looks at signals, and at other workers, between two).
protocol.messages = {
  {"ready"},
  {"refused", "text", "code"},
  {"devices", "names"}, -- every GPU that can be opened
  {"built", "columns", "failed", of_cell = true, answer = "go"}, -- what the cell is, or why it cannot be built
  {"columns", "columns", of_cell = true}, -- more of its columns
  {"samples", "list", of_cell = true, most = 1000}, -- what was timed, see samples.lua
  {"skipped", of_cell = true}, -- it was not wanted: there is a row already
  {"done", "columns", "code", "unbuilt", of_cell = true}, -- the rest; what went wrong; whether there was no network
}

local by_word = {}
for _, kind in ipairs(protocol.messages) do by_word[kind[1]] = kind end

-- The message of that word; ...: what stands in it, in the order of the table.
function protocol.message(word, ...)
  local message, kind = {word = word}, by_word[word]
  for i = 2, #kind do message[kind[i]] = (select(i - 1, ...)) end
  return message
end

-- {word = function(...)}: says it of a cell. hear(message, answered) -> the parent's answer, where it is answered.
function protocol.teller(hear)
  local tell = {}
  for _, kind in ipairs(protocol.messages) do
    local word, most = kind[1], kind.most
    tell[word] = kind.of_cell and function(...)
      if most then
        local list = ...
        for from = 1, #list, most do
          hear(protocol.message(word, table.move(list, from, math.min(from + most - 1, #list), 1, {})))
        end
        return nil
      end
      local answer = hear(protocol.message(word, ...), kind.answer)
      return kind.answer and answer and answer[kind.answer]
    end or nil
  end
  return tell
end

-- handlers: {word = function(...)}. Raises unless there is one for everything that is said of a cell.
function protocol.check(handlers)
  for _, kind in ipairs(protocol.messages) do
    if kind.of_cell and not handlers[kind[1]] then error("nobody hears " .. kind[1]) end
  end
  return handlers
end

return protocol
