std = "lua54"
max_line_length = 130
read_globals = {"memtide"}
