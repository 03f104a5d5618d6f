"""Runs a program on a terminal of its own and plays the terminal: what would be seen, and what it did to get there.

terminal.py COLUMNS LINES FRAMES [--interrupt TEXT] PROGRAM ARGUMENTS ...

The last picture goes to standard output, every picture on the way to the file FRAMES, with a form feed after each. The
last line of output counts what a screen that is drawn in place must not do: "status 0 wraps 0 above 0 unknown 0", with
"colours" and "ups" (moves of the cursor upwards) after it. --interrupt presses Ctrl-C when the text is first seen.
"""
import fcntl
import os
import pty
import re
import struct
import sys
import termios


class Screen:
    """The part of a terminal that is needed: text, CR, LF, cursor up, erase to the end of line or screen, colours."""

    def __init__(self, columns, lines):
        self.columns, self.height = columns, lines
        self.rows, self.row, self.column, self.top = [[]], 0, 0, 0
        self.facts = dict(wraps=0, above=0, unknown=0, colours=0, ups=0)

    def put(self, character):
        width = 2 if ord(character) >= 0x1100 else 1
        if self.column + width > self.columns:
            self.facts["wraps"] += 1
            self.feed_line()
            self.column = 0
        row = self.rows[self.row]
        row.extend(" " * (self.column + width - len(row)))
        row[self.column:self.column + width] = [character] + [""] * (width - 1)
        self.column += width

    def feed_line(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])
        self.top = max(self.top, self.row - self.height + 1)

    def escape(self, number, letter):
        if letter == "A":
            self.facts["ups"] += 1
            self.row -= int(number or 1)
            if self.row < self.top:
                self.facts["above"] += 1
                self.row = self.top
        elif letter == "K" and not number:
            del self.rows[self.row][self.column:]
        elif letter == "J" and not number:
            del self.rows[self.row][self.column:], self.rows[self.row + 1:]
        elif letter == "m":
            self.facts["colours"] += 1
        else:
            self.facts["unknown"] += 1

    def take(self, text):
        for number, letter, character in re.findall(r"\x1b\[([0-9;?]*)([A-Za-z])|([\s\S])", text):
            if letter:
                self.escape(number, letter)
            elif character == "\r":
                self.column = 0
            elif character == "\n":
                self.feed_line()
            elif character < " ":
                self.facts["unknown"] += 1
            else:
                self.put(character)

    def picture(self):
        return "\n".join("".join(row).rstrip() for row in self.rows).rstrip()


def start(columns, lines, program):
    process, terminal = pty.fork()
    if process == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.execvp(program[0], program)
    return process, terminal


UNFINISHED = re.compile(rb"(\x1b(\[[0-9;?]*)?|[\xc0-\xff][\x80-\xbf]{0,2})\Z")


def pieces(terminal):
    """Text as it comes, cut where neither a character nor an escape sequence is in pieces."""
    rest = b""
    while True:
        try:
            got = os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody has the terminal open any more
            got = b""
        rest += got
        cut = UNFINISHED.search(rest) if got else None
        whole = rest[:cut.start()] if cut else rest
        rest = rest[len(whole):]
        yield whole.decode("utf-8", "replace")
        if not got:
            return


def main(arguments):
    columns, lines, frames = int(arguments[0]), int(arguments[1]), arguments[2]
    program, key = arguments[3:], None
    if program[0] == "--interrupt":
        key, program = program[1], program[2:]
    process, terminal = start(columns, lines, program)
    screen = Screen(columns, lines)
    with open(frames, "w", encoding="utf-8") as out:
        for text in pieces(terminal):
            screen.take(text)
            out.write(screen.picture() + "\n\f\n")
            out.flush()
            if key and key in screen.picture():
                os.write(terminal, b"\x03")
                key = None
    status = os.waitpid(process, 0)[1]
    print(screen.picture())
    facts = " ".join("%s %d" % fact for fact in screen.facts.items())
    print("status %d %s" % (os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1, facts))


main(sys.argv[1:])
