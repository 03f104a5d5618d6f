-- Rows with dotted paths as a tree: sums, equal blocks as one, depth.
local tap = dofile "tests/tap.lua"
local tree = require "memtide.results.tree"

-- rows: {{path, kind, number}, ...} -> "name kind sum count" of each line
local function shown(rows, depth)
  local list, lines = {}, {}
  for i, row in ipairs(rows) do list[i] = {path = row[1], same = row[2], n = row[3]} end
  local root = tree.build(list, function(row) return {n = row.n} end)
  tree.each(root, depth, function(node, name)
    local kind = tree.kind(node, function(row) return row.same end)
    lines[#lines + 1] = ("%s %s %d %d"):format(name, kind == "" and "-" or kind, node.sums.n, node.count)
  end)
  return table.concat(lines, "\n"), root
end

local flat, root = shown{{"0", "Conv", 1}, {"1", "ReLU", 2}, {"2", "Conv", 4}}
tap.is(flat, "0 Conv 1 1\n1 ReLU 2 1\n2 Conv 4 1", "layers without containers are a list")
tap.is(root.sums.n, 7, "with a sum")

local blocks = {{"embed", "Embedding", 1}}
for i = 0, 11 do
  blocks[#blocks + 1] = {("blocks.%d.attn"):format(i), "Attention", 10}
  blocks[#blocks + 1] = {("blocks.%d.mlp.up"):format(i), "Linear", 100}
  blocks[#blocks + 1] = {("blocks.%d.mlp.down"):format(i), "Linear", 1000}
end
blocks[#blocks + 1] = {"head", "Linear", 5}
tap.is((shown(blocks)), table.concat({"embed Embedding 1 1", "blocks.0-11 x 12 - 13320 12", "  attn Attention 120 12",
  "  mlp - 13200 12", "    up Linear 1200 12", "    down Linear 12000 12", "head Linear 5 1"}, "\n"),
  "equal blocks are one, with the sums of all")
tap.is((shown(blocks, 1)), "embed Embedding 1 1\nblocks.0-11 x 12 - 13320 12\nhead Linear 5 1", "to a depth of 1")
tap.is((shown(blocks, 2)), table.concat({"embed Embedding 1 1", "blocks.0-11 x 12 - 13320 12", "  attn Attention 120 12",
  "  mlp - 13200 12", "head Linear 5 1"}, "\n"), "of 2")

tap.is((shown{{"l.0.a", "A", 1}, {"l.1.a", "A", 1}, {"l.2.a", "B", 1}, {"l.3.a", "B", 1}, {"l.4.a", "B", 1}}),
  "l - 5 1\n  0-1 x 2.a A 2 2\n  2-4 x 3.a B 3 3", "a block that differs begins another run")
tap.is((shown{{"l.0", "A", 1}, {"l.2", "A", 1}}), "l - 2 1\n  0 A 1 1\n  2 A 1 1", "numbers with a gap are no run")
tap.is((shown{{"l.0.x.0", "A", 1}, {"l.0.x.1", "A", 1}, {"l.1.x.0", "A", 1}, {"l.1.x.1", "A", 1}}),
  "l.0-1 x 2.x.0-1 x 2 A 4 4", "runs in runs")
tap.is((shown{{"l.a", "A", 1}, {"l.b", "A", 1}}), "l - 2 1\n  a A 1 1\n  b A 1 1", "names that are no numbers stay apart")
tap.is((shown{{"", "Linear", 3}, {"", "view", 1}, {"x", "X", 1}}), ". Linear 4 1\nx X 1 1",
  "the network itself, of which there may be several rows")
tap.is((shown{{"a", "A", 3}, {"a.b", "B", 1}}), "a A 4 1\n  b B 1 1", "a layer that has layers, too")
tap.is((shown{}), "", "nothing")

-- ---- siblings that repeat in turns

-- The lines of a list of layers: kinds is a text "Conv ReLU ..."; a layer's number is its place
local function sequence(kinds, prefix)
  local rows = {}
  for kind in kinds:gmatch "%S+" do rows[#rows + 1] = {(prefix or "") .. #rows, kind, #rows} end
  return (shown(rows))
end

tap.is(sequence "Conv ReLU Conv ReLU Conv ReLU", "0-5 x 3 (Conv, ReLU) 15 3", "two in turns are one line, with the sum of all")
tap.is(sequence("Conv Norm ReLU Conv Norm ReLU", "net."), "net.0-5 x 2 (Conv, Norm, ReLU) 15 2", "three in turns")
tap.is(sequence "Pool Conv ReLU Conv ReLU Pool", "0 Pool 0 1\n1-4 x 2 (Conv, ReLU) 10 2\n5 Pool 5 1", "between others")
tap.is(sequence "First ReLU Conv ReLU Conv ReLU Pool", "0 First 0 1\n1 ReLU 1 1\n2-5 x 2 (Conv, ReLU) 14 2\n6 Pool 6 1",
  "a turn ends where the repetition ends")
tap.is(sequence "Conv ReLU Conv Norm", "0 Conv 0 1\n1 ReLU 1 1\n2 Conv 2 1\n3 Norm 3 1", "a turn and a half are none")
tap.is(sequence "A A A A A", "0-4 x 5 A 10 5", "the shortest turn")
tap.is(sequence "A A B A A B", "0-5 x 2 (A, A, B) 15 2", "and what covers most")
tap.is((shown{{"0", "Conv", 1}, {"1", "ReLU", 1}, {"3", "Conv", 1}, {"4", "ReLU", 1}}), "0 Conv 1 1\n1 ReLU 1 1\n3 Conv 1 1\n4 ReLU 1 1",
  "numbers with a gap are no turn")

local turns = {}
for i = 0, 5 do
  turns[#turns + 1] = {("h.%d.attn"):format(i), i % 2 == 0 and "Window" or "Full", 1}
  turns[#turns + 1] = {("h.%d.mlp.0"):format(i), "Linear", 10}
  turns[#turns + 1] = {("h.%d.mlp.1"):format(i), "ReLU", 100}
  turns[#turns + 1] = {("h.%d.mlp.2"):format(i), "Linear", 10}
  turns[#turns + 1] = {("h.%d.mlp.3"):format(i), "ReLU", 100}
end
tap.is((shown(turns)), table.concat({"h.0-5 x 3 - 1326 3", "  0, 2 .. 4 x 3 - 663 3", "    attn Window 3 3", "    mlp.0-3 x 2 (Linear, ReLU) 660 6",
  "  1, 3 .. 5 x 3 - 663 3", "    attn Full 3 3", "    mlp.0-3 x 2 (Linear, ReLU) 660 6"}, "\n"), "blocks in turns show what is in them")
tap.is((shown(turns, 1)), "h.0-5 x 3 - 1326 3", "to a depth")
local _, found = shown{{"0", "Conv", 1}, {"1", "ReLU", 2}, {"2", "Conv", 4}, {"3", "ReLU", 8}}
tap.is(table.concat(tree.texts(found.children[1], function(row) return row.path end), " "), "0 1", "the texts of one turn")
tap.done()
