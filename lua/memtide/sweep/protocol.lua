-- The messages between a worker and its parent; each is a table that wire.lua sends.
--
--   parent   {path, text, args, safe, purpose, options, device}, once: the script's text as the parent read it, whether
--            it runs under --safe, arguments of selection.new, the device for all cells (nil: that of their settings)
--   worker   ready, or refused
--   parent   {k, implied} for each cell; implied: why it cannot fit, if another cell has shown that
--   worker   the cell and its row, in pieces: built, columns, samples, done; or built, skipped
--
--   parent   {probe = true} instead of all that
--   worker   devices
local protocol = {}

-- The worker's messages: {word, names of its fields}; of_cell: it is about a cell; answer: field of the parent's
-- answer; most: a longer list is sent in several messages, so that the parent can look at signals and other workers in
-- between.
protocol.messages = {
  {"ready"},
  {"refused", "text", "code"},
  {"devices", "names"}, -- every GPU that can be opened
  {"built", "columns", "failed", of_cell = true, answer = "go"}, -- its first columns; why it cannot be built
  {"columns", "columns", of_cell = true}, -- more columns
  {"samples", "list", of_cell = true, most = 1000}, -- timed steps: see samples.lua
  {"skipped", of_cell = true}, -- after the answer go = false: there is a row already
  {"done", "columns", "code", "unbuilt", of_cell = true}, -- the last columns; code of a failure; was there no network?
}

local by_word = {}
for _, kind in ipairs(protocol.messages) do by_word[kind[1]] = kind end

-- The message of that word; ...: its fields in the order of the table.
function protocol.message(word, ...)
  local message, kind = {word = word}, assert(by_word[word])
  for i = 2, #kind do message[kind[i]] = (select(i - 1, ...)) end
  return message
end

-- {word = function(fields) that sends the message} for all messages about a cell, by way of hear(message, answered),
-- which returns the parent's answer if `answered`.
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

-- Returns handlers, {word = function}; raises unless there is one for every message about a cell.
function protocol.check(handlers)
  for _, kind in ipairs(protocol.messages) do
    if kind.of_cell and not handlers[kind[1]] then error("nobody hears " .. kind[1]) end
  end
  return handlers
end

return protocol
