std = "lua54"
max_line_length = 165
exclude_files = {"tests/oracle"} -- data
