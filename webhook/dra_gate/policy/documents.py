"""YAML as a reviewer reads it: plain objects plus the place of every key and value.

Read event by event, so that nothing recurses and nothing is built that was not written. Refused, because readers
differ on them or a reviewer overlooks them: duplicate keys, anchors and aliases, tags, merge keys, and plain words
that YAML 1.1 and 1.2 take for different things (`on`, `no`, `017`, `1:30`, dates, floating point numbers).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from dra_gate.policy.errors import PolicyError
from dra_gate.policy.model import Place

Path = tuple[str | int, ...]
MAX_BYTES = 1 << 20  # of one file
MAX_DEPTH = 32  # of nested lists and mappings


@dataclass(frozen=True, slots=True)
class Text:
    """How a scalar's text stands in its file: `origin` is the place of the text's first character.

    `indent` is what every further line of a block scalar starts with; None when text and file do not run in parallel
    (folded or with escapes), and then only `origin` is known.
    """

    origin: Place
    indent: int | None

    def place(self, line: int, column: int) -> Place:
        """The place of a character of the text; `line` and `column` count from 1."""
        if self.indent is None:
            return self.origin
        first = self.origin.column if line == 1 else self.indent + 1
        return Place(self.origin.file, self.origin.line + line - 1, first + column - 1)


@dataclass(slots=True)
class Document:
    """One YAML document. `broken` are the paths whose value was refused: what stands there means nothing."""

    place: Place
    value: object = None
    values: dict[Path, Place] = field(default_factory=dict)
    keys: dict[Path, Place] = field(default_factory=dict)
    texts: dict[Path, Text] = field(default_factory=dict)
    broken: set[Path] = field(default_factory=set)

    def at(self, path: Path) -> Place:
        """The place of the value at `path`, or of the nearest thing around it that is there."""
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, self.place)

    def key_at(self, path: Path) -> Place:
        """The place of the key that holds the value at `path`."""
        return self.keys.get(path) or self.at(path)

    def is_broken(self, path: Path) -> bool:
        """Whether an error about `path` would only repeat one that was reported while reading."""
        return any(path[: len(bad)] == bad for bad in self.broken)


@dataclass(frozen=True, slots=True)
class File:
    """What one file holds. `complete` is False when reading stopped early: names may be missing."""

    documents: tuple[Document, ...]
    errors: tuple[PolicyError, ...]
    complete: bool


def read(name: str, data: bytes) -> File:
    """Reads the YAML documents of one file. Never raises for what the bytes are: what is wrong comes back."""
    if len(data) > MAX_BYTES:
        return _refused(Place(name, 1, 1), f"the file has {len(data)} bytes", f"at most {MAX_BYTES} are read; split it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        return _refused(Place(name, line, column), f"not UTF-8: {error.reason}", "save the file as UTF-8")
    reader = _Reader(name, text)
    complete = True
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            reader.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(name, mark.line + 1, mark.column + 1) if mark else Place(name, 1, 1)
        what = " ".join(part for part in (error.context, error.problem) if part)
        if error.context_mark and error.problem_mark:
            what += f" (begun at {error.context_mark.line + 1}:{error.context_mark.column + 1})"
        reader.errors.append(PolicyError(place, f"not YAML: {what}", "fix the syntax; what follows was not read"))
        complete = False
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", None) or "cannot be read"
        reader.errors.append(PolicyError(_character_place(name, text, error), f"not YAML: {reason}", "remove it"))
        complete = False
    except _StopError as stop:
        reader.errors.append(stop.error)
        complete = False
    return File(tuple(reader.documents), tuple(reader.errors), complete)


def _refused(place: Place, message: str, remedy: str) -> File:
    return File((), (PolicyError(place, message, remedy),), complete=False)


def _character_place(name: str, text: str, error: yaml.YAMLError) -> Place:
    # A ReaderError counts characters (or bytes) from the start of the stream and has no mark.
    position = getattr(error, "position", None)
    if not isinstance(position, int) or not 0 <= position <= len(text):
        return Place(name, 1, 1)
    return Place(name, text.count("\n", 0, position) + 1, position - (text.rfind("\n", 0, position) + 1) + 1)


class _StopError(Exception):
    """Reading a file ends here; the error says why."""

    def __init__(self, error: PolicyError) -> None:
        self.error = error


@dataclass(slots=True)
class _Frame:
    """A list or mapping being read. A mapping without `key` waits for one; `dropped` keys leave it when it ends."""

    path: Path
    items: dict[str, object] | list[object]
    key: str | None = None
    dropped: list[str] = field(default_factory=list)


class _Reader:
    def __init__(self, file: str, text: str) -> None:
        self.lines = _LINE_BREAK.split(text)
        self.documents: list[Document] = []
        self.errors: list[PolicyError] = []
        self._file = file
        self._document = Document(Place(file, 1, 1))
        self._stack: list[_Frame] = []

    def take(self, event: yaml.Event) -> None:
        place = self._place(event)
        if isinstance(event, yaml.DocumentStartEvent):
            self._document = Document(place)
        elif isinstance(event, yaml.DocumentEndEvent):
            if self._document.value is not None or self._document.broken:
                self.documents.append(self._document)
        elif isinstance(event, yaml.CollectionEndEvent):
            frame = self._stack.pop()
            if isinstance(frame.items, dict):
                for key in frame.dropped:
                    del frame.items[key]
                if frame.dropped and not frame.items:
                    self._document.broken.add(frame.path)
            self._value_done()
        elif isinstance(event, yaml.NodeEvent):
            frame = self._stack[-1] if self._stack else _Frame((), [])
            if isinstance(frame.items, dict) and frame.key is None:
                self._key(event, place, frame, frame.items)
            else:
                self._value(event, place)

    def _place(self, event: yaml.Event) -> Place:
        assert event.start_mark is not None  # noqa: S101 - only events made by hand have none
        return Place(self._file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _key(self, event: yaml.NodeEvent, place: Place, frame: _Frame, items: dict[str, object]) -> None:
        self._refuse_decoration(event, place)
        if not isinstance(event, yaml.ScalarEvent):
            raise _StopError(PolicyError(place, "a key that is not plain text", "write a word before the colon"))
        key: str = event.value
        frame.key = key
        if not event.style and key == "<<":
            self._error(place, "merge key <<", "write the fields out")
        elif not event.style and (reason := _ambiguous(key) or _not_text(key)):
            self._error(place, f"key {key} is {reason}", f'keys are text: write "{key}" in quotes')
        elif key in items:
            first = self._document.keys[(*frame.path, key)]
            self._error(place, f"{key} is there twice", f"it already stands in line {first.line}; keep one")
        else:
            self._document.keys[(*frame.path, key)] = place
            return
        # Read on under a name that no file can contain, so that what is wrong inside the value is reported as well.
        frame.key = f"\0{len(frame.dropped)}"
        frame.dropped.append(frame.key)

    def _value(self, event: yaml.NodeEvent, place: Place) -> None:
        path = self._next_path()
        if len(path) > MAX_DEPTH:
            raise _StopError(PolicyError(place, f"nested more than {MAX_DEPTH} deep", "no policy file needs that"))
        self._refuse_decoration(event, place)
        self._document.values[path] = place
        if isinstance(event, yaml.CollectionStartEvent):
            items: dict[str, object] | list[object] = {} if isinstance(event, yaml.MappingStartEvent) else []
            self._store(items)
            self._stack.append(_Frame(path, items))
            return
        if isinstance(event, yaml.ScalarEvent):
            self._store(self._scalar(event, place, path))
        else:
            self._document.broken.add(path)
            self._store(None)
        self._value_done()

    def _refuse_decoration(self, event: yaml.NodeEvent, place: Place) -> None:
        if event.anchor is not None:
            what = f"alias *{event.anchor}" if isinstance(event, yaml.AliasEvent) else f"anchor &{event.anchor}"
            self._error(place, what, "write the value out where it is used")
        tag = getattr(event, "tag", None)
        if tag is not None:
            self._error(place, f"tag {tag.replace('tag:yaml.org,2002:', '!!')}", "leave it out")

    def _next_path(self) -> Path:
        if not self._stack:
            return ()
        frame = self._stack[-1]
        return (*frame.path, len(frame.items) if isinstance(frame.items, list) else frame.key or "")

    def _store(self, value: object) -> None:
        if not self._stack:
            self._document.value = value
            return
        frame = self._stack[-1]
        if isinstance(frame.items, list):
            frame.items.append(value)
        else:
            frame.items[frame.key or ""] = value

    def _value_done(self) -> None:
        if self._stack:
            self._stack[-1].key = None

    def _scalar(self, event: yaml.ScalarEvent, place: Place, path: Path) -> object:
        text: str = event.value
        self._document.texts[path] = self._text(event, place)
        if event.style:
            return text
        if reason := _ambiguous(text):
            meant = _MEANT.get(text.lower(), "what you mean")
            self._error(place, f"{text} is {reason}", f'write "{text}" in quotes, or {meant}')
            self._document.broken.add(path)
            return text
        if text in _NULLS:
            return None
        if text in ("true", "false"):
            return text == "true"
        return int(text) if _INTEGER.fullmatch(text) else text

    def _text(self, event: yaml.ScalarEvent, place: Place) -> Text:
        line, column = place.line - 1, place.column - 1
        if event.style in ("|", ">"):
            body = line + 1
            while body < len(self.lines) and not self.lines[body].strip():
                body += 1
            first = self.lines[body] if body < len(self.lines) else ""
            # A folded block joins lines, an indentation digit changes what is text: then only the start is known.
            literal = event.style == "|" and not any(c.isdigit() for c in self.lines[line][column:].partition("#")[0])
            indent = len(first) - len(first.lstrip(" "))
            return Text(Place(self._file, line + 2, indent + 1), indent if literal else None)
        quote = 1 if event.style else 0
        source = self.lines[line] if line < len(self.lines) else ""  # an absent value stands behind the last line
        written = source[column + quote : column + quote + len(event.value) + quote]
        parallel = written == event.value + (event.style or "")
        return Text(Place(self._file, place.line, place.column + quote), column + quote if parallel else None)

    def _error(self, place: Place, message: str, remedy: str) -> None:
        self.errors.append(PolicyError(place, message, remedy))


_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # what libyaml counts as one
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBER_12 = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+|0x[0-9a-fA-F]+|[-+]?\.inf|\.nan", re.IGNORECASE
)
_WORDS_11 = frozenset(("y", "n", "yes", "no", "on", "off"))
_MEANT = {**dict.fromkeys(("y", "yes", "on", "true"), "true"), **dict.fromkeys(("n", "no", "off", "false"), "false")}
_KINDS = {"bool": "a yes-or-no word", "int": "a number", "float": "a number", "timestamp": "a date", "null": "nothing"}
_RESOLVERS: Mapping[str, list[tuple[str, re.Pattern[str]]]] = yaml.SafeLoader.yaml_implicit_resolvers


def _ambiguous(text: str) -> str | None:
    """Why a plain scalar is refused: YAML 1.1 and 1.2, or two readers of one of them, do not agree on what it is."""
    if text in _NULLS or text in ("true", "false") or _INTEGER.fullmatch(text):
        return None
    kind = "bool" if text.lower() in _WORDS_11 else next(_resolved(text), None)
    if kind is None and _NUMBER_12.fullmatch(text):
        kind = "float"
    return None if kind is None else f"{_KINDS.get(kind, 'something else')} to some YAML readers"


def _not_text(text: str) -> str | None:
    if text in _NULLS:
        return "not text"
    return "not text" if text in ("true", "false") or _INTEGER.fullmatch(text) else None


def _resolved(text: str) -> Iterator[str]:
    # PyYAML's own table of YAML 1.1 kinds, by first character.
    for tag, pattern in _RESOLVERS.get(text[:1], []):
        if pattern.match(text):
            yield tag.rpartition(":")[2]
