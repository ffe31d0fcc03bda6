"""What the checker knows: the `device` variable and the functions of Kubernetes' CEL, as cel-expr-python takes them.

Two environments, as in the API server (k8s.io/dynamic-resource-allocation/cel compile.go, 1.37):

- NEW, for expressions that somebody writes: attributes have the type `any`.
- STORED, for those that are in the cluster already: attributes have the type `dyn`, and `includes` is known.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from cel_expr_python import cel

NEW: Final = "any"
STORED: Final = "dyn"

_QUANTITY, _SEMVER = "kubernetes.Quantity", "kubernetes.Semver"
_NUMBERS = {"int64": "int", "uint64": "uint", "double": "double"}
_ORDERED = {**_NUMBERS, "bool": "bool", "string": "string", "bytes": "bytes"}
_TIMES = {"timestamp": "timestamp", "duration": "duration"}  # declared, so that the evaluator can say what it lacks
_LISTED = ("int", "uint", "double", "bool", "string", "bytes")

# (function, overload, receiver or "", arguments, result). Overload names are cel-go's: the cost estimate goes by them.
_FUNCTIONS: Final[tuple[tuple[str, str, str, tuple[str, ...], str], ...]] = (
    ("quantity", "string_to_quantity", "", ("string",), _QUANTITY),
    ("isQuantity", "is_quantity_string", "", ("string",), "bool"),
    ("sign", "quantity_sign", "", (_QUANTITY,), "int"),
    ("isInteger", "quantity_is_integer", _QUANTITY, (), "bool"),
    ("asInteger", "quantity_get_int", _QUANTITY, (), "int"),
    ("asApproximateFloat", "quantity_get_float", _QUANTITY, (), "double"),
    ("add", "quantity_add", _QUANTITY, (_QUANTITY,), _QUANTITY),
    ("add", "quantity_add_int", _QUANTITY, ("int",), _QUANTITY),
    ("sub", "quantity_sub", _QUANTITY, (_QUANTITY,), _QUANTITY),
    ("sub", "quantity_sub_int", _QUANTITY, ("int",), _QUANTITY),
    ("isGreaterThan", "quantity_is_greater_than", _QUANTITY, (_QUANTITY,), "bool"),
    ("isLessThan", "quantity_is_less_than", _QUANTITY, (_QUANTITY,), "bool"),
    ("compareTo", "quantity_compare_to", _QUANTITY, (_QUANTITY,), "int"),
    ("semver", "string_to_semver", "", ("string",), _SEMVER),
    ("semver", "string_bool_to_semver", "", ("string", "bool"), _SEMVER),
    ("isSemver", "is_semver_string", "", ("string",), "bool"),
    ("isSemver", "is_semver_string_bool", "", ("string", "bool"), "bool"),
    ("major", "semver_major", _SEMVER, (), "int"),
    ("minor", "semver_minor", _SEMVER, (), "int"),
    ("patch", "semver_patch", _SEMVER, (), "int"),
    ("isGreaterThan", "semver_is_greater_than", _SEMVER, (_SEMVER,), "bool"),
    ("isLessThan", "semver_is_less_than", _SEMVER, (_SEMVER,), "bool"),
    ("compareTo", "semver_compare_to", _SEMVER, (_SEMVER,), "int"),
    ("charAt", "string_char_at_int", "string", ("int",), "string"),
    ("indexOf", "string_index_of_string", "string", ("string",), "int"),
    ("indexOf", "string_index_of_string_int", "string", ("string", "int"), "int"),
    ("indexOf", "list_a_index_of_int", "list<~A>", ("~A",), "int"),
    ("lastIndexOf", "string_last_index_of_string", "string", ("string",), "int"),
    ("lastIndexOf", "string_last_index_of_string_int", "string", ("string", "int"), "int"),
    ("lastIndexOf", "list_a_last_index_of_int", "list<~A>", ("~A",), "int"),
    ("join", "list_join", "list<string>", (), "string"),
    ("join", "list_join_string", "list<string>", ("string",), "string"),
    ("lowerAscii", "string_lower_ascii", "string", (), "string"),
    ("upperAscii", "string_upper_ascii", "string", (), "string"),
    ("replace", "string_replace_string_string", "string", ("string", "string"), "string"),
    ("replace", "string_replace_string_string_int", "string", ("string", "string", "int"), "string"),
    ("split", "string_split_string", "string", ("string",), "list<string>"),
    ("split", "string_split_string_int", "string", ("string", "int"), "list<string>"),
    ("substring", "string_substring_int", "string", ("int",), "string"),
    ("substring", "string_substring_int_int", "string", ("int", "int"), "string"),
    ("trim", "string_trim", "string", (), "string"),
    ("find", "string_find_string", "string", ("string",), "string"),
    ("findAll", "string_find_all_string", "string", ("string",), "list<string>"),
    ("findAll", "string_find_all_string_int", "string", ("string", "int"), "list<string>"),
    *(("isSorted", f"list_{name}_is_sorted_bool", f"list<{name}>", (), "bool") for name in _LISTED),
    *(("sum", f"list_{name}_sum_{name}", f"list<{name}>", (), name) for name in ("int", "uint", "double")),
    *(("max", f"list_{name}_max_{name}", f"list<{name}>", (), name) for name in _LISTED),
    *(("min", f"list_{name}_min_{name}", f"list<{name}>", (), name) for name in _LISTED),
    # CrossTypeNumericComparisons: cel-cpp declares only like with like, so the operators are declared anew.
    *(
        (operator, f"{word}_{name}", "", (kind, kind), "bool")
        for operator, word in (("_<_", "less"), ("_<=_", "less_equals"), ("_>_", "greater"), ("_>=_", "greater_equals"))
        for name, kind in (_ORDERED | _TIMES).items()
    ),
    *(
        (operator, f"{word}_{one}_{two}", "", (_NUMBERS[one], _NUMBERS[two]), "bool")
        for operator, word in (("_<_", "less"), ("_<=_", "less_equals"), ("_>_", "greater"), ("_>=_", "greater_equals"))
        for one in _NUMBERS
        for two in _NUMBERS
        if one != two
    ),
)
_STORED_FUNCTIONS = (("includes", "list_includes_dyn_dyn", "dyn", ("dyn",), "bool"),)
_REPLACED = ("_<_", "_<=_", "_>_", "_>=_")

# Part of Kubernetes' CEL and not of ours: devices carry no times, addresses or URLs; the rest is not worth its size.
# fmt: off
UNSUPPORTED: Final = frozenset((
    "timestamp", "duration", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear",
    "getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds", "format", "quote", "strings", "url",
    "isURL", "getScheme", "getHost", "getHostname", "getPort", "getEscapedPath", "getQuery", "ip", "isIP",
    "cidr", "isCIDR", "isCanonical", "family", "isUnspecified", "isLoopback", "isLinkLocalMulticast",
    "isLinkLocalUnicast", "isGlobalUnicast", "containsIP", "containsCIDR", "prefixLength", "masked", "named",
    "validate", "slice", "flatten", "distinct", "reverse", "sort", "sortBy", "range", "lists", "first", "last",
    "unwrap", "unwrapOpt", "authorizer", "includes",
))
# fmt: on


@cache
def environment(attributes: str) -> Any:
    """The cel-expr-python environment in which attributes have the type `attributes`: NEW or STORED."""
    declared = _FUNCTIONS + (_STORED_FUNCTIONS if attributes == STORED else ())
    functions: dict[str, list[dict[str, Any]]] = {}
    for name, overload, receiver, args, result in declared:
        entry: dict[str, Any] = {"id": overload, "args": [{"type": arg} for arg in args], "return": result}
        functions.setdefault(name, []).append({**entry, "target": {"type": receiver}} if receiver else entry)
    config = {
        "stdlib": {"exclude_functions": [{"name": name} for name in _REPLACED]},
        "extensions": [{"name": name} for name in ("bindings", "optional", "two-var-comprehensions", "sets")],
        "variables": [
            # `device` itself is declared so that `device.typo` is told apart from an unknown variable.
            {"name": "device", "type": "kubernetes.DRADevice"},
            {"name": "device.driver", "type": "string"},
            {"name": "device.allowMultipleAllocations", "type": "bool"},
            {"name": "device.attributes", "type": f"map<string,map<string,{attributes}>>"},
            {"name": "device.capacity", "type": f"map<string,map<string,{_QUANTITY}>>"},
        ],
        "functions": [{"name": name, "overloads": overloads} for name, overloads in functions.items()],
    }
    return cel.NewEnv(config=cel.NewEnvConfigFromYaml(json.dumps(config)))
