"""Regular expressions that are matched in linear time.

Clients choose the pattern in ListTransactions. Python's `re` can take exponential time, in which the node would serve
nobody. So this module compiles the pattern to a nondeterministic automaton and follows all its states at once. It has
the syntax of Java's regular expressions without back references, lookaround, possessive quantifiers, flags and set
operations in classes.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from moldau.errors import InvalidRegularExpressionError

LENGTH_MAX = 1_000
"""Maximum length of a pattern. Repeated parts are parsed once per repetition."""
STATES_MAX = 1_000
"""Maximum number of states and members of classes. Each costs time for every character."""
REPETITIONS_MAX = 1_000
DEPTH_MAX = 100

_LINE_TERMINATORS = frozenset("\n\r\u0085\u2028\u2029")
_DIGITS = frozenset("0123456789")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SPACE = frozenset(" \t\n\x0b\f\r")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}

_Predicate = Callable[[str], bool]


class _Fragment(NamedTuple):
    """A part of the automaton that is entered at one state and left at another."""

    start: int
    end: int


class IdPattern:
    """Raises InvalidRegularExpressionError if the pattern is invalid or not supported."""

    def __init__(self, pattern: str) -> None:
        parser = _Parser(pattern)
        whole = parser.parse()
        self.size = parser.state_count
        """The time that one character takes at most, as a number of states."""
        self._start, self._end = whole
        self._characters = parser.characters
        self._epsilons = parser.epsilons
        self._assertions = parser.assertions

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        *_, is_match = self.steps(text)
        return is_match

    def steps(self, text: str) -> Iterator[bool]:
        """Matches the text character by character, so that the caller can interrupt a long match.

        Yields after each character whether the pattern matches up to there. The last value is that of the whole text.
        """
        states = self._closure({self._start}, is_start=True, is_end=not text)
        yield self._end in states
        last = len(text) - 1
        for position, character in enumerate(text):
            following = {
                target
                for state in states
                for predicate, target in self._characters.get(state, ())
                if predicate(character)
            }
            states = self._closure(following, is_start=False, is_end=position == last)
            yield self._end in states
            if not states:
                return

    def _closure(self, states: set[int], *, is_start: bool, is_end: bool) -> set[int]:
        reached, pending = set(states), list(states)
        while pending:
            state = pending.pop()
            targets = list(self._epsilons.get(state, ()))
            for at_start, target in self._assertions.get(state, ()):
                if is_start if at_start else is_end:
                    targets.append(target)
            for target in targets:
                if target not in reached:
                    reached.add(target)
                    pending.append(target)
        return reached


class _Parser:
    """A recursive descent parser that builds the automaton (Thompson's construction)."""

    def __init__(self, pattern: str) -> None:
        self.characters: dict[int, list[tuple[_Predicate, int]]] = {}
        self.epsilons: dict[int, list[int]] = {}
        self.assertions: dict[int, list[tuple[bool, int]]] = {}
        """Transitions at the start (True) or end (False) of the text."""
        self._pattern = pattern
        self._position = 0
        self.state_count = 0
        self._depth = 0

    def parse(self) -> _Fragment:
        if len(self._pattern) > LENGTH_MAX:
            raise self._error("the expression is too long")
        whole = self._alternation()
        if self._position < len(self._pattern):
            raise self._error("unmatched ')'")
        return whole

    # The automaton

    def _state(self) -> int:
        self.state_count += 1
        if self.state_count > STATES_MAX:
            raise self._error("the expression is too large")
        return self.state_count

    def _link(self, source: int, target: int) -> None:
        self.epsilons.setdefault(source, []).append(target)

    def _empty(self) -> _Fragment:
        state = self._state()
        return _Fragment(state, state)

    def _character(self, predicate: _Predicate) -> _Fragment:
        start, end = self._state(), self._state()
        self.characters.setdefault(start, []).append((predicate, end))
        return _Fragment(start, end)

    def _assertion(self, *, at_start: bool) -> _Fragment:
        start, end = self._state(), self._state()
        self.assertions.setdefault(start, []).append((at_start, end))
        return _Fragment(start, end)

    # The syntax

    def _alternation(self) -> _Fragment:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error("too many nested groups")
        start, end = self._state(), self._state()
        while True:
            branch = self._sequence()
            self._link(start, branch.start)
            self._link(branch.end, end)
            if not self._take("|"):
                self._depth -= 1
                return _Fragment(start, end)

    def _sequence(self) -> _Fragment:
        whole = self._empty()
        while self._peek() not in ("", "|", ")"):
            item = self._repeated()
            self._link(whole.end, item.start)
            whole = _Fragment(whole.start, item.end)
        return whole

    def _repeated(self) -> _Fragment:
        position = self._position
        item = self._atom()
        bounds = self._quantifier()
        if bounds is None:
            return item
        low, high = bounds
        after = self._position
        whole = self._empty()
        copies = max(low, 1) if high is None else high
        for number in range(copies):
            if number:
                # Parse the item again, so that each repetition has its own states.
                self._position = position
                item = self._atom()
            if number >= low:
                self._link(whole.end, item.start)
                optional_end = self._state()
                self._link(whole.end, optional_end)
                self._link(item.end, optional_end)
                whole = _Fragment(whole.start, optional_end)
            else:
                self._link(whole.end, item.start)
                whole = _Fragment(whole.start, item.end)
        if high is None:
            # Repeat the last copy. If it is the only one and optional, its end can be reached without it.
            loop = self._state()
            self._link(item.end, loop)
            self._link(loop, item.start)
        self._position = after
        return whole

    def _quantifier(self) -> tuple[int, int | None] | None:
        bounds: tuple[int, int | None]
        if self._take("*"):
            bounds = (0, None)
        elif self._take("+"):
            bounds = (1, None)
        elif self._take("?"):
            bounds = (0, 1)
        elif self._take("{"):
            bounds = self._bounds()
        else:
            return None
        if self._take("+"):
            raise self._error("possessive quantifiers are not supported")
        self._take("?")  # A reluctant quantifier matches the same texts.
        if self._peek() in ("*", "+", "?", "{"):
            raise self._error(f"dangling meta character '{self._peek()}'")
        return bounds

    def _bounds(self) -> tuple[int, int | None]:
        low = self._number()
        high: int | None = low
        if self._take(","):
            high = None if self._peek() == "}" else self._number()
        if not self._take("}"):
            raise self._error("unclosed counted closure")
        if high is not None and high < low:
            raise self._error("illegal repetition range")
        return low, high

    def _number(self) -> int:
        digits = ""
        while self._peek() in _DIGITS:
            digits += self._next()
        if not digits:
            raise self._error("illegal repetition")
        if len(digits) > 4 or int(digits) > REPETITIONS_MAX:
            raise self._error("too many repetitions")
        return int(digits)

    def _atom(self) -> _Fragment:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._character(self._class())
            case ".":
                return self._character(lambda each: each not in _LINE_TERMINATORS)
            case "^":
                return self._assertion(at_start=True)
            case "$":
                return self._assertion(at_start=False)
            case "\\":
                return self._escaped()
            case "*" | "+" | "?" | "{":
                raise self._error(f"dangling meta character '{character}'")
        return self._character(character.__eq__)

    def _group(self) -> _Fragment:
        if self._take("?"):
            if self._take("<") and self._peek() not in ("=", "!"):
                while self._peek() not in ("", ">"):
                    self._next()
                if not self._take(">"):
                    raise self._error("unclosed group name")
            elif not self._take(":"):
                raise self._error("flags and lookaround are not supported")
        inner = self._alternation()
        if not self._take(")"):
            raise self._error("unclosed group")
        return inner

    def _escaped(self) -> _Fragment:
        if self._take("Q"):
            whole = self._empty()
            while self._peek() and not self._pattern.startswith("\\E", self._position):
                item = self._character(self._next().__eq__)
                self._link(whole.end, item.start)
                whole = _Fragment(whole.start, item.end)
            self._position += 2
            return whole
        if self._take("A"):
            return self._assertion(at_start=True)
        if self._take("z") or self._take("Z"):
            return self._assertion(at_start=False)
        return self._character(self._escape())

    def _class(self) -> _Predicate:
        is_negated = self._take("^")
        members: list[_Predicate] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            self._state()  # Not used, but a member takes as much time as a state.
            if self._peek() in ("", "[") or self._pattern.startswith("&&", self._position):
                raise self._error("unclosed character class, or a set operation, which is not supported")
            low = self._class_member()
            if self._peek() == "-" and self._pattern[self._position + 1 : self._position + 2] not in ("]", ""):
                self._next()
                high = self._class_member()
                if not isinstance(low, str) or not isinstance(high, str) or low > high:
                    raise self._error("illegal character range")
                members.append(_in_range(low, high))
            else:
                members.append(low.__eq__ if isinstance(low, str) else low)
        self._next()
        if is_negated:
            return lambda each: not any(member(each) for member in members)
        return lambda each: any(member(each) for member in members)

    def _class_member(self) -> str | _Predicate:
        character = self._next()
        return character if character != "\\" else self._escape_value()

    def _escape(self) -> _Predicate:
        value = self._escape_value()
        return value.__eq__ if isinstance(value, str) else value

    def _escape_value(self) -> str | _Predicate:
        character = self._next()
        if character in _CONTROLS:
            return _CONTROLS[character]
        match character:
            case "d":
                return _DIGITS.__contains__
            case "w":
                return _WORD.__contains__
            case "s":
                return _SPACE.__contains__
            case "D":
                return lambda each: each not in _DIGITS
            case "W":
                return lambda each: each not in _WORD
            case "S":
                return lambda each: each not in _SPACE
            case "x":
                return self._hexadecimal(2)
            case "u":
                return self._hexadecimal(4)
        if character.isascii() and character.isalnum():
            raise self._error(f"the escape \\{character} is not supported")
        return character

    def _hexadecimal(self, digits: int) -> str:
        text = self._pattern[self._position : self._position + digits]
        if len(text) < digits or any(each not in "0123456789abcdefABCDEF" for each in text):
            raise self._error("illegal hexadecimal escape sequence")
        self._position += digits
        return chr(int(text, 16))

    # Characters

    def _peek(self) -> str:
        """Returns the next character; "" at the end."""
        return self._pattern[self._position : self._position + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise self._error("unexpected end")
        self._position += 1
        return character

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._position += 1
        return True

    def _error(self, reason: str) -> InvalidRegularExpressionError:
        return InvalidRegularExpressionError(
            f"Transaction ID pattern `{self._pattern}` is not a valid regular expression: {reason} near index "
            f"{self._position}"
        )


def _in_range(low: str, high: str) -> _Predicate:
    return lambda each: low <= each <= high
