"""List code of the package that no query, no command and no public name reaches.

Idea: nodes are modules, their definitions and methods. A body leads to every name that it uses,
resolved through imports. A method is reached once its class is reached and a reached body uses an
attribute of that name, on whatever object. The roots are the names that the package exports and its
command line. An exported class is reached with all its public methods, and with the classes that
these take or return. A string that is the name of a module reaches that module, such as the daemon
that Spark starts workers from. The testing tools are left out: what only they use is theirs.

Limits: the answer errs towards "reached". A dead method is missed where another class has a live
one of the same name, and code behind a condition that never holds counts as reached.

usage: python tools/reachability.py [--check] [--source DIR]
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: modules, packages, definitions and methods that stay though nothing reaches them, and why
ALLOWED = {
    "icestream.operators.process.column_state:ValueColumns.numpy": "user code calls it",
    "icestream.operators.process.column_state:_filled": "ValueColumns.numpy calls it",
}
#: modules of the package that are not looked at
LEFT_OUT = "testing"
#: modules whose names are public, beside the package itself
ROOTS = ("cli", "__main__")
#: bases that call no method by name; any other base from outside may call every method
PASSIVE = {"ABC", "Enum", "Exception", "Generic", "NamedTuple", "Protocol", "TypedDict"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
DOTTED = re.compile(r"\w+(?:\.\w+)+")
SPECIAL = re.compile(r"__\w+__|_[a-z]+_")


@dataclass
class Module:
    """What a file defines, what its imported names stand for, and which statements just run."""

    lines: int
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    #: local name -> (module, name in that module, or "" for the module itself)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    statements: list[ast.AST] = field(default_factory=list)

    def collect(self, body: Iterable[ast.AST]) -> None:
        """Sort the statements of the top level, and those under its `if` and `try`."""
        for node in body:
            names: list[str] = []
            match node:
                case ast.Import() | ast.ImportFrom():
                    self.imports |= imported_names(node)
                    continue
                case ast.If() | ast.Try() | ast.ExceptHandler():
                    self.collect(ast.iter_child_nodes(node))
                    continue
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    names = [] if any(map(self._registers, node.decorator_list)) else [node.name]
                case ast.Assign(targets=targets):
                    names = [each.id for each in targets if isinstance(each, ast.Name)]
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names = [name]
            if isinstance(node, ast.stmt) and names and not SPECIAL.fullmatch(names[0]):
                self.definitions |= dict.fromkeys(names, node)
            else:
                self.statements.append(node)

    def _registers(self, decorator: ast.expr) -> bool:
        """Tell whether a decorator is a method of an object of this module, as `@app.command`."""
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        owner = called.value if isinstance(called, ast.Attribute) else None
        return isinstance(owner, ast.Name) and owner.id in self.definitions


def imported_names(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str]]:
    """Return what the names that an import binds stand for."""
    if isinstance(node, ast.ImportFrom):
        return {each.asname or each.name: (node.module or "", each.name) for each in node.names}
    tops = [(each.asname, each.name, each.name.split(".")[0]) for each in node.names]
    return {alias or top: (name if alias else top, "") for alias, name, top in tops}


def methods(node: ast.AST | None) -> dict[str, list[Function]]:
    """Return the methods of a class by name, without special ones; of anything else none."""
    found: dict[str, list[Function]] = defaultdict(list)
    for each in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(each, Function) and not SPECIAL.fullmatch(each.name):
            found[each.name].append(each)
    return found


def span(nodes: Iterable[ast.stmt]) -> int:
    """Count the lines of definitions, with their decorators."""
    starts = [(n, [d.lineno for d in getattr(n, "decorator_list", [])]) for n in nodes]
    return sum((n.end_lineno or n.lineno) - min([n.lineno, *above]) + 1 for n, above in starts)


class Graph:
    """The modules of a package, and the nodes that are reached: `m`, `m:name`, `m:Class.method`."""

    def __init__(self, source: Path) -> None:
        """Read the modules of a package and follow its roots."""
        self.modules: dict[str, Module] = {}
        self.reached: set[str] = set()
        self._public: set[str] = set()
        self._attributes: set[str] = set()
        #: attribute -> nodes that are reached as soon as it is used
        self._waiting: dict[str, set[str]] = defaultdict(set)
        self._todo: list[str] = []
        for path in sorted(source.rglob("*.py")):
            name = ".".join(path.relative_to(source.parent).with_suffix("").parts)
            if not name.startswith(f"{source.name}.{LEFT_OUT}."):
                text = path.read_text()
                module = Module(len(text.splitlines()))
                module.collect(ast.parse(text).body)
                self.modules[name.removesuffix(".__init__")] = module
        self.roots = {source.name, *(f"{source.name}.{each}" for each in ROOTS)}
        for root in self.roots & self.modules.keys():
            self._reach(root)
            exported = self.modules[root].imports if root == source.name else ()
            for name in [*self.modules[root].definitions, *exported]:
                if node := self._resolve(root, name):
                    (self._reach if name.startswith("_") else self._publish)(node)
        self._follow()

    def _resolve(self, module: str, name: str = "") -> str | None:
        """Return the node that a name of a module stands for, None if it is from outside."""
        home = self.modules.get(module)
        if home is None or not name:
            return module if home else None
        if name in home.definitions:
            return f"{module}:{name}"
        if name in home.imports and home.imports[name] != (module, name):
            return self._resolve(*home.imports[name])
        return self._resolve(f"{module}.{name}")

    def _definition(self, node: str) -> ast.stmt | None:
        home, _, name = node.partition(":")
        return self.modules[home].definitions.get(name)

    def _uses(self, module: str, bodies: Iterable[ast.AST]) -> Iterator[str]:
        """Yield the nodes that code of a module uses, and note the attributes that it uses."""
        nodes = [node for body in bodies for node in ast.walk(body)]
        imports = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
        local = {name: to for each in imports for name, to in imported_names(each).items()}

        def target(node: ast.AST) -> str | None:
            if isinstance(node, ast.Name):
                return self._resolve(*local.get(node.id, (module, node.id)))
            if isinstance(node, ast.Attribute):
                owner = target(node.value)
                return self._resolve(owner, node.attr) if owner and ":" not in owner else None
            return None

        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        for node in nodes:
            mentioned: set[str] = set()
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = "" if id(node) in docs else node.value
                self._attributes.add(text)
                mentioned = self.modules.keys() & set(DOTTED.findall(text))
            elif isinstance(node, ast.Name | ast.Attribute) and (found := target(node)):
                if ":" in found:
                    yield found
                elif id(node) not in owners:
                    mentioned = {found}
            if isinstance(node, ast.Attribute):
                self._attributes.add(node.attr)
            for module_name in mentioned:
                # whoever loads it, or is handed it, may use any attribute of it
                yield module_name
                for name in self.modules[module_name].definitions:
                    self._waiting[name].add(f"{module_name}:{name}")

    def _reach(self, node: str) -> None:
        if node not in self.reached:
            self.reached.add(node)
            self._todo.append(node)

    def _publish(self, node: str) -> None:
        """Reach what a user has in hand: a name, its public methods, the classes in signatures."""
        self._reach(node)
        definition = self._definition(node)
        if node in self._public or definition is None:
            return
        self._public.add(node)
        shown = {n: m for n, m in methods(definition).items() if not n.startswith("_")}
        for name in shown:
            self._reach(f"{node}.{name}")
        functions = [each for bodies in shown.values() for each in bodies]
        functions += [definition] if isinstance(definition, Function) else []
        parts: list[ast.AST] = [p for each in functions for p in (each.args, each.returns) if p]
        parts += definition.bases if isinstance(definition, ast.ClassDef) else []
        for used in list(self._uses(node.partition(":")[0], parts)):
            if isinstance(self._definition(used), ast.ClassDef):
                self._publish(used)

    def _follow(self) -> None:
        """Reach everything that the reached nodes lead to."""
        while self._todo:
            node = self._todo.pop()
            home, _, name = node.partition(":")
            bodies = self._bodies(node)
            for used in [home, *self._uses(home, bodies)]:
                self._reach(used)
            for imported, _ in () if name else self.modules[home].imports.values():
                if imported in self.modules:
                    self._reach(imported)
            named = {n.id for body in bodies for n in ast.walk(body) if isinstance(n, ast.Name)}
            for method in methods(self._definition(node)):
                is_used = method in named or self._may_be_called_outside(node)
                (self._reach if is_used else self._waiting[method].add)(f"{node}.{method}")
            for attribute in self._attributes & self._waiting.keys():
                for each in self._waiting.pop(attribute):
                    self._reach(each)

    def _bodies(self, node: str) -> list[ast.AST]:
        """Return the code of a node; that of a class is without its methods."""
        home, _, name = node.partition(":")
        owner, _, method = name.partition(".")
        definition = self.modules[home].definitions.get(owner)
        if not isinstance(definition, ast.ClassDef):
            return [definition] if definition else self.modules[home].statements
        named = methods(definition)
        apart = [each for bodies in named.values() for each in bodies]
        rest = [each for each in ast.iter_child_nodes(definition) if each not in apart]
        return [*named[method]] if method else rest

    def _may_be_called_outside(self, node: str) -> bool:
        """Tell whether a class has a base from outside that may call its methods."""
        definition = self._definition(node)
        for base in definition.bases if isinstance(definition, ast.ClassDef) else []:
            bare = base.value if isinstance(base, ast.Subscript) else base
            inside = next(self._uses(node.partition(":")[0], [bare]), None)
            is_passive = ast.unparse(bare).rpartition(".")[2] in PASSIVE
            if self._may_be_called_outside(inside) if inside else not is_passive:
                return True
        return False

    def unreachable(self) -> Iterator[tuple[int, str]]:
        """Yield lines and name of each module, definition and method that nothing reaches."""
        live = self.roots | {node.partition(":")[0] for node in self.reached if ":" in node}
        for home, module in self.modules.items():
            is_parent = any(name.startswith(f"{home}.") for name in live)
            if home not in live and (module.definitions or not is_parent):
                yield module.lines, home
                continue
            for name, definition in module.definitions.items():
                if f"{home}:{name}" not in self.reached:
                    yield span([definition]), f"{home}:{name}"
                    continue
                for method, bodies in methods(definition).items():
                    if f"{home}:{name}.{method}" not in self.reached:
                        yield span(bodies), f"{home}:{name}.{method}"


def covers(allowed: str, node: str) -> bool:
    """Tell whether an allowed name is that of a node, or of something that the node is in."""
    return node == allowed or node.startswith((f"{allowed}.", f"{allowed}:"))


def main() -> int:
    """Print what nothing reaches, largest first; with `--check` return 1 if there is any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    source = Path(__file__).parents[1] / "src" / "icestream"
    parser.add_argument("--source", type=Path, default=source, help="the folder of the package")
    parser.add_argument("--check", action="store_true", help="end with 1 if anything is found")
    options = parser.parse_args()
    found = sorted(Graph(options.source).unreachable(), reverse=True)
    dead = [(n, node) for n, node in found if not any(covers(each, node) for each in ALLOWED)]
    mine = [each for each in ALLOWED if covers(options.source.name, each)]
    stale = [each for each in mine if not any(covers(each, node) for _, node in found)]
    for lines, node in dead:
        print(f"{lines:6} {node}")
    for each in stale:
        print(f"{each} is reached now, or gone: take it out of ALLOWED")
    if not options.check or dead:
        print(f"{sum(lines for lines, _ in dead):6} lines in {len(dead)} places")
    return int(options.check and bool(dead or stale))


if __name__ == "__main__":
    sys.exit(main())
