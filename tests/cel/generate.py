"""Random selectors: typed, so that nearly all of them compile, and small enough to read when one fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

STRINGS = ("''", "'a'", "'b'", "'ab'", "'H100'", "'NVIDIA H100 80GB'", "'é'", "'a,b'", "'1'", "'-7'", "'true'")
INTS = ("0", "1", "2", "-1", "5", "7", "100", "9223372036854775807", "-9223372036854775808")
DOUBLES = ("0.0", "1.0", "-2.5", "5.0", "1e6", "1.5e300")
UINTS = ("0u", "1u", "5u", "18446744073709551615u")
QUANTITIES = ("'1'", "'40Gi'", "'1.5Gi'", "'1500m'", "'0'", "'-3'")
VERSIONS = ("'1.2.3'", "'1.2.3-rc.1'", "'550.54.15'", "'0.0.1+b'")
REGEXES = ("'a'", "'^NVIDIA H100( |$)'", "'[0-9]+'", "'(a|b)*$'", "'.'", "''")

# What the fixture devices publish, by static type; missing ones are in on purpose.
ATTRIBUTES = {"string": ("s", "x", "gone"), "int": ("i", "gone"), "bool": ("b", "gone"), "semver": ("v",)}
CAPACITIES = ("m", "gone")
DOMAINS = ("['d']", ".d", "['zz']", "[device.driver]")


@dataclass
class Generator:
    """Writes expressions of a wanted type. `kubernetes` turns on what only Kubernetes' libraries have."""

    rng: Random
    kubernetes: bool = True
    attributes: bool = True
    depth: int = 4
    scope: list[tuple[str, str]] = field(default_factory=list)

    def selector(self) -> str:
        """An expression of type bool."""
        return self.of("bool", self.depth)

    def of(self, kind: str, depth: int) -> str:
        """An expression of a type, at most `depth` levels deep."""
        names = [name for name, has in self.scope if has == kind]
        if names and self.rng.random() < 0.4:
            return self.rng.choice(names)
        if depth <= 0 or self.rng.random() < 0.1:
            return self.leaf(kind)
        if self.rng.random() < 0.08:
            return f"({self.of('bool', depth - 1)} ? {self.of(kind, depth - 1)} : {self.of(kind, depth - 1)})"
        if self.rng.random() < 0.04:
            return self.bind(kind, depth - 1)
        if self.rng.random() < 0.05:
            return f"optional.of({self.of(kind, depth - 1)}).orValue({self.of(kind, depth - 1)})"
        options = getattr(self, f"_{kind}")(depth - 1)
        return self.rng.choice(options)()

    def leaf(self, kind: str) -> str:
        """A constant or an attribute."""
        pick = self.rng.choice
        if self.attributes and kind in ATTRIBUTES and self.rng.random() < 0.5:
            return self.attribute(kind)
        match kind:
            case "bool":
                return pick(("true", "false"))
            case "string":
                return pick(STRINGS)
            case "int":
                return pick(INTS)
            case "uint":
                return pick(UINTS)
            case "double":
                return pick(DOUBLES)
            case "quantity":
                if self.attributes and self.rng.random() < 0.5:
                    return f"device.capacity{pick(DOMAINS)}.{pick(CAPACITIES)}"
                return f"quantity({pick(QUANTITIES)})"
            case "semver":
                return f"semver({pick(VERSIONS)})"
            case "list":
                return pick(("[]", "[1]", "[1, 2, 3]", "[0, 5]"))
            case "strings":
                return pick(("['a']", "['a', 'b']", "[device.driver, 'x']" if self.attributes else "['x', 'x']"))
        raise AssertionError(kind)

    def attribute(self, kind: str) -> str:
        """A read of an attribute, guarded in some way or not at all."""
        name = self.rng.choice(ATTRIBUTES[kind])
        domain = f"device.attributes{self.rng.choice(DOMAINS)}"
        form = self.rng.random()
        if form < 0.4:
            return f"{domain}.{name}"
        if form < 0.6:
            return f"{domain}['{name}']"
        default = {"string": "''", "int": "0", "bool": "false", "semver": "semver('0.0.0')"}[kind]
        return f"{domain}.?{name}.orValue({default})"

    def bind(self, kind: str, depth: int) -> str:
        """cel.bind of a value of some type."""
        other = self.rng.choice(("bool", "int", "string"))
        name = f"v{len(self.scope)}"
        value = self.of(other, depth)
        self.scope.append((name, other))
        body = self.of(kind, depth)
        self.scope.pop()
        return f"cel.bind({name}, {value}, {body})"

    def over(self, kind: str, element: str, depth: int) -> tuple[str, str]:
        """A loop variable and an expression of a type in which it is known."""
        name = f"v{len(self.scope)}"
        self.scope.append((name, element))
        body = self.of(kind, depth)
        self.scope.pop()
        return name, body

    def _loop(self, macro: str, kind: str, depth: int) -> str:
        lists, element = self.rng.choice((("list", "int"), ("strings", "string")))
        name, body = self.over(kind, element, depth)
        return f"{self.of(lists, depth)}.{macro}({name}, {body})"

    def _bool(self, depth: int) -> list:
        of, pick = self.of, self.rng.choice
        kind = pick(("int", "double", "string", "uint"))
        options = [
            lambda: f"({of('bool', depth)} && {of('bool', depth)})",
            lambda: f"({of('bool', depth)} || {of('bool', depth)})",
            lambda: f"({of('bool', depth)} && {of('bool', depth)} && {of('bool', depth)})",
            lambda: f"!{of('bool', 0)}",
            lambda: f"({of(kind, depth)} {pick(('==', '!=', '<', '<=', '>', '>='))} {of(kind, depth)})",
            lambda: f"({of('list', depth)} == {of('list', depth)})",
            lambda: f"{of('string', depth)}.{pick(('contains', 'startsWith', 'endsWith'))}({of('string', 0)})",
            lambda: f"{of('string', depth)}.matches({pick(REGEXES)})",
            lambda: f"({of('string', depth)} in {of('strings', depth)})",
            lambda: f"({of('int', depth)} in {of('list', depth)})",
            lambda: self._loop(pick(("all", "exists", "exists_one")), "bool", depth),
            lambda: f"bool({of('string', depth)})",
        ]
        if self.attributes:
            domain, name = f"device.attributes{pick(DOMAINS)}", pick(("s", "x", "i", "gone"))
            options += [
                lambda: f"has({domain}.{name})",
                lambda: f"('{name}' in {domain})",
                lambda: f"(has({domain}.{name}) && {domain}.{name} == {of('string', depth)})",
                lambda: f"(!has({domain}.{name}) || {domain}.{name} == {of('string', depth)})",
                lambda: f"({of('bool', depth)} && has({domain}.{name}))",
                lambda: f"{domain}.?{name}.hasValue()",
                lambda: f"{domain}.exists(k, k == {of('string', 0)})",
                lambda: "device.allowMultipleAllocations",
                lambda: f"(device.driver == {of('string', depth)})",
            ]
        if self.kubernetes:
            options += [
                lambda: f"({of('quantity', depth)}.compareTo({of('quantity', depth)}) >= 0)",
                lambda: f"{of('quantity', depth)}.{pick(('isGreaterThan', 'isLessThan'))}({of('quantity', depth)})",
                lambda: f"({of('quantity', depth)} == {of('quantity', depth)})",
                lambda: f"{of('quantity', depth)}.isInteger()",
                lambda: f"{of('semver', depth)}.{pick(('isGreaterThan', 'isLessThan'))}({of('semver', depth)})",
                lambda: f"({of('semver', depth)}.compareTo({of('semver', depth)}) < 0)",
                lambda: f"({of('int', depth)} < {of('double', depth)})",
                lambda: f"isQuantity({of('string', depth)})",
                lambda: f"isSemver({of('string', depth)})",
                lambda: f"{of('list', depth)}.isSorted()",
                lambda: (
                    f"sets.{pick(('contains', 'intersects', 'equivalent'))}({of('list', depth)}, {of('list', depth)})"
                ),
                lambda: f"{of('list', depth)}.exists(i, v, v > i)",
            ]
        return options

    def _string(self, depth: int) -> list:
        of, pick = self.of, self.rng.choice
        options = [
            lambda: f"({of('string', depth)} + {of('string', depth)})",
            lambda: f"string({of(pick(('int', 'bool', 'uint', 'string')), depth)})",
            lambda: f"{of('string', depth)}.{pick(('lowerAscii', 'upperAscii', 'trim'))}()",
            lambda: f"{of('string', depth)}.replace({of('string', 0)}, {of('string', 0)})",
            lambda: f"{of('string', depth)}.substring({of('int', 0)})",
            lambda: f"{of('string', depth)}.charAt({of('int', 0)})",
            lambda: f"{of('strings', depth)}.join({of('string', 0)})",
            lambda: f"{of('strings', depth)}[{of('int', 0)}]",
        ]
        if self.kubernetes:
            options += [
                lambda: f"{of('string', depth)}.find({pick(REGEXES)})",
                lambda: f"string({of('double', depth)})",
            ]
        return options

    def _int(self, depth: int) -> list:
        of, pick = self.of, self.rng.choice
        options = [
            lambda: f"({of('int', depth)} {pick('+-*/%')} {of('int', depth)})",
            lambda: f"-({of('int', depth)})",
            lambda: f"size({of(pick(('string', 'list', 'strings')), depth)})",
            lambda: f"int({of(pick(('string', 'double', 'uint')), depth)})",
            lambda: f"{of('string', depth)}.{pick(('indexOf', 'lastIndexOf'))}({of('string', 0)})",
            lambda: f"{of('list', depth)}[{of('int', 0)}]",
        ]
        if self.kubernetes:
            options += [
                lambda: f"{of('quantity', depth)}.asInteger()",
                lambda: f"{of('semver', depth)}.{pick(('major', 'minor', 'patch'))}()",
                lambda: f"{of('list', depth)}.{pick(('sum', 'max', 'min'))}()",
                lambda: f"sign({of('quantity', depth)})",
            ]
        return options

    def _uint(self, depth: int) -> list:
        of, pick = self.of, self.rng.choice
        return [
            lambda: f"({of('uint', depth)} {pick('+-*/%')} {of('uint', depth)})",
            lambda: f"uint({of(pick(('int', 'double')), depth)})",
        ]

    def _double(self, depth: int) -> list:
        of, pick = self.of, self.rng.choice
        options = [
            lambda: f"({of('double', depth)} {pick('+-*/')} {of('double', depth)})",
            lambda: f"double({of(pick(('int', 'uint')), depth)})",
        ]
        return [*options, lambda: f"{of('quantity', depth)}.asApproximateFloat()"] if self.kubernetes else options

    def _quantity(self, depth: int) -> list:
        of, pick = self.of, self.rng.choice
        return [
            lambda: f"{of('quantity', depth)}.{pick(('add', 'sub'))}({of(pick(('quantity', 'int')), depth)})",
            lambda: f"quantity({of('string', depth)})",
            lambda: self.leaf("quantity"),
        ]

    def _semver(self, depth: int) -> list:
        return [lambda: f"semver({self.of('string', depth)})", lambda: self.leaf("semver")]

    def _list(self, depth: int) -> list:
        of = self.of
        return [
            lambda: f"[{of('int', depth)}, {of('int', depth)}]",
            lambda: f"({of('list', depth)} + {of('list', depth)})",
            lambda: self._loop("map", "int", depth),
            lambda: f"{of('list', depth)}.filter({', '.join(self.over('bool', 'int', depth))})",
        ]

    def _strings(self, depth: int) -> list:
        of = self.of
        return [
            lambda: f"[{of('string', depth)}, {of('string', depth)}]",
            lambda: f"{of('string', depth)}.split({of('string', 0)})",
            lambda: f"({of('strings', depth)} + {of('strings', depth)})",
            lambda: self._loop("map", "string", depth),
        ]


KEYS = ("k", "l", "m")


def guarded_or_not(rng: Random, depth: int, names: tuple[str, ...] = ()) -> str:
    """A boolean expression of reads and guards of the keys `KEYS` in domain `d`, all of which hold text."""
    if depth > 0 and rng.random() < 0.85:
        parts = [guarded_or_not(rng, depth - 1, names) for _ in range(3)]
        more = f"b{len(names)}"
        return rng.choice(
            (
                f"({parts[0]} && {parts[1]})",
                f"({parts[0]} && {parts[1]})",
                f"({parts[0]} || {parts[1]})",
                f"({parts[0]} && {parts[1]} && {parts[2]})",
                f"({parts[0]} || {parts[1]} || {parts[2]})",
                f"!({parts[0]})",
                f"({parts[0]} ? {parts[1]} : {parts[2]})",
                f"(({parts[0]}) == {rng.choice(('true', 'false'))})",
                f"(({parts[0]}) != ({parts[1]}))",
                f"cel.bind({more}, {parts[0]}, {guarded_or_not(rng, depth - 1, (*names, more))})",
                f"['k', 'z'].exists({more}, {parts[0]})",
                f"[1].all({more}, {parts[0]})",
                f"optional.of({parts[0]}).orValue({parts[1]})",
            )
        )
    if names and rng.random() < 0.4:
        return rng.choice(names)
    key = rng.choice(KEYS)
    domain = rng.choice(("device.attributes['d']", "device.attributes.d", "device.attributes[device.driver]"))
    return rng.choice(
        (
            f"has({domain}.{key})",
            f"has({domain}.{key})",
            f"'{key}' in {domain}",
            f"{domain}.{key} == 'v'",
            f"{domain}['{key}'] != 'v'",
            f"{domain}.{key}.startsWith('v')",
            f"{domain}.?{key}.orValue('') == 'v'",
            f"{domain}.?{key}.hasValue()",
            f"{domain}.?{key}.value() == 'v'",
            f"{domain}[?'{key}'].optMap(t, t == 'v').orValue(false)",
            f"device.attributes[?'d'].?{key}.optMap(t, t == 'v').hasValue()",
            f"cel.bind(o, {domain}, has(o.{key}) && o.{key} == 'v')",
            f"cel.bind(o, {domain}, {domain}.{key} == 'v' && has(o.{key}))",
            f"{domain}.exists(t, {domain}[t] == 'v')",
            f"{domain}.all(t, u, u == 'v')",
            f"device.attributes.exists(t, has(device.attributes[t].{key}) && device.attributes[t].{key} == 'v')",
            f"size({domain}) > 1",
            "true",
        )
    )
