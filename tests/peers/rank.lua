-- What `memtide dump SCRIPT --set framework=pytorch` prints, for any rank: memtide tests/peers/rank.lua SCRIPT RANK
local cards = require "memtide.net.cards"
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local settings = require "memtide.net.settings"

local script, rank = ...
local one = dofile(script):cells()[1]
one.values.framework, one.values.device = "pytorch", "pytorch:a100-80gb"
cell.build(one)
local values = settings.for_core(one.values)
values.rank = tonumber(rank)
io.write((assert(core.eager(one.network, values, cards.name(one.values.device))):dump()))
cell.release(one)
