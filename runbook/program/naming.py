"""What a name or an attribute stands for: scopes, imports, classes and what they are derived from."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from runbook.program.abstract_values import (
    UNKNOWN,
    ClassValue,
    External,
    Function,
    Imported,
    Instance,
    Known,
    Many,
    Method,
    Module,
    ModuleName,
    Native,
    Scope,
    Super,
    Table,
    Value,
)
from runbook.program.expressions import Expressions
from runbook.program.sources import MOST_BYTES, Sources

BUILTIN = "builtins."
_BUILTINS = frozenset({
    "list", "tuple", "set", "sorted", "frozenset", "reversed", "dict", "zip", "enumerate", "len", "range", "str", "int",
    "float", "bool", "min", "max", "getattr", "setattr", "exec", "open", "super", "object", "type", "map", "filter",
    "globals", "exit", "quit", "isinstance", "issubclass", "hasattr", "vars", "any", "all", "property",
    "staticmethod", "classmethod", "bytes", "complex", "print", "repr", "id", "hash", "iter", "next",
    "sum", "round", "abs", "callable", "dir", "delattr",
})
_MOST_ANCESTORS = 40
WORDS = frozenset({
    "ArgumentParser", "add_argument", "parse_args", "parse_known_args", "parse_intermixed_args", "HfArgumentParser",
    "TrlParser", "parse_args_into_dataclasses", "parse_args_and_config", "tyro", "draccus", "pyrallis",
    "simple_parsing", "Fire", "fire", "CLI", "LightningCLI", "auto_cli", "argv", "click", "typer", "Typer", "from_cli",
    "hydra", "absl", "flags", "jsonargparse", "configargparse", "Tap", "gflags", "exec", "extra_args_provider",
    "argparse", "from_dotlist", "initialize_config_dir", "OmegaConf", "compose",
})
"""Names of which one stands in whatever makes a parser or reads the command line."""


class Naming(Expressions):
    """Names, imports and attributes. Modules are read when something of them is asked for."""

    sources: Sources
    own_libraries: frozenset[str]
    """Packages whose parsers are known here: their own source is never walked through."""
    entry: Module
    _looked_up: dict[Value, Value]
    _imported_modules: set[str]

    def start(self, module: Module) -> None:
        """Run a module's statements, once."""
        raise NotImplementedError

    def name(self, name: str, scope: Scope) -> Value:
        inside: Scope | None = scope
        while inside is not None:
            if name in inside.names and (not inside.is_class or inside is scope):
                return inside.names[name]
            inside = inside.outer
        if name == "__name__":
            main = scope.module is self.entry
            return Known("__main__" if main else PurePosixPath(scope.module.path).stem)
        if name == "__file__":
            return Known(scope.module.path)
        stars = scope.module.scope.external_stars
        if name in _BUILTINS or not stars:
            return External(BUILTIN + name) if name in _BUILTINS else UNKNOWN
        return External(f"{stars[-1]}.{name}")

    def look_up(self, value: Value) -> Value:
        """What an imported name stands for; any other value is itself."""
        if not isinstance(value, Imported | ModuleName):
            return value
        if value not in self._looked_up:
            self._looked_up[value] = UNKNOWN  # for imports that go round
            found = self._module(value) if isinstance(value, ModuleName) else self._imported(value)
            self._looked_up[value] = found
        return self._looked_up[value]

    def _module(self, name: ModuleName) -> Value:
        root = name.dotted.partition(".")[0]
        self.imports(name.dotted)
        if name.folder is None and (root in self.own_libraries or root in sys.stdlib_module_names):
            return External(name.dotted)
        return self.sources.named(name.dotted, name.folder, name.by) or External(name.dotted)

    def imports(self, dotted: str) -> None:
        """A module that the program imports, and those it is in: what stands in them is looked for as modules."""
        while dotted and dotted not in self._imported_modules:
            self._imported_modules.add(dotted)
            dotted = dotted.rpartition(".")[0]

    def _imported(self, value: Imported) -> Value:
        module = self._module(value.module)
        if isinstance(module, Module):
            return self.attribute(module, value.name)
        dotted = f"{value.module.dotted}.{value.name}".lstrip(".")
        below = self._module(ModuleName(dotted, value.module.folder, value.module.by))
        return below if isinstance(below, Module) else External(dotted)

    def attribute(self, value: Value, name: str) -> Value:
        if isinstance(value, External):
            dotted = f"{value.name}.{name}"
            if dotted in self._imported_modules:
                return self.look_up(ModuleName(dotted, None, self.entry.path))
            return External(dotted)
        if isinstance(value, Module):
            return self._of_module(value, name)
        if isinstance(value, ClassValue):
            return self._of_class(value, name, value)
        if isinstance(value, Instance):
            if name in value.attributes:
                return value.attributes[name]
            found = self._of_class(value.of, name, value)
            return Method(value.native, name) if value.native is not None and not _of_program(found) else found
        if isinstance(value, Super):
            return self._above(value, name)
        if isinstance(value, Known):
            return value if name in ("value", "name") else Method(value, name)
        if isinstance(value, Native):
            return value.attribute(name) or Method(value, name)
        if isinstance(value, Many | Table):
            return Method(value, name)
        if isinstance(value, Function) and name in ("remote", "options", "main"):
            return value
        return UNKNOWN

    def _of_module(self, module: Module, name: str) -> Value:
        self.start(module)
        if name in module.scope.names:
            return self.look_up(module.scope.names[name])
        folder = PurePosixPath(module.path).parent
        if module.path.endswith("__init__.py"):
            below = self.sources.named(name, str(folder), module.path)
            if below is not None:
                return below
        if module.scope.external_stars:
            return External(f"{module.scope.external_stars[-1]}.{name}")
        stem = folder.name if module.path.endswith("__init__.py") else PurePosixPath(module.path).stem
        return External(f"{stem}.{name}")

    def _of_class(self, of: ClassValue, name: str, bound: Value) -> Value:
        for ancestor in self.ancestors(of):
            if isinstance(ancestor, ClassValue) and name in ancestor.scope.names:
                return _bound(self.look_up(ancestor.scope.names[name]), bound)
            if isinstance(ancestor, External) and ancestor.name != f"{BUILTIN}object":
                return External(f"{ancestor.name}.{name}")
        return UNKNOWN

    def _above(self, value: Super, name: str) -> Value:
        of = value.instance.of if isinstance(value.instance, Instance) else value.instance
        line = list(self.ancestors(of))
        start = line.index(value.above) + 1 if value.above in line else 0
        for ancestor in line[start:]:
            if isinstance(ancestor, ClassValue) and name in ancestor.scope.names:
                return _bound(self.look_up(ancestor.scope.names[name]), value.instance)
        instance = value.instance
        if isinstance(instance, Instance) and (instance.native is not None or name == "__init__"):
            return Method(value if instance.native is None else instance.native, name)
        return UNKNOWN

    def ancestors(self, value: Value) -> Sequence[Value]:
        """A class and what it is derived from, nearest first: classes of the program, names of others."""
        found: list[Value] = []
        ahead: list[Value] = [value]
        while ahead and len(found) < _MOST_ANCESTORS:
            current = self.look_up(ahead.pop(0))
            if current in found:
                continue
            found.append(current)
            if isinstance(current, ClassValue):
                ahead = [*current.bases, *ahead]
        return found

    def installed(self, value: Value) -> Value:
        """A class or function of an installed package whose source can be read; else the value itself."""
        if not isinstance(value, External) or value.name.partition(".")[0] in sys.stdlib_module_names:
            return value
        dotted, _, name = value.name.rpartition(".")
        while dotted:
            module = self.sources.installed_named(dotted)
            if module is not None:
                found = self.attribute(module, name.partition(".")[0])
                return found if isinstance(found, ClassValue | Function) else value
            dotted, _, last = dotted.rpartition(".")
            name = f"{last}.{name}"
        return value

    def start_imports(self) -> None:
        """Run the modules that are imported, and those that these import."""
        ahead, seen = [self.entry], {self.entry.path}
        while ahead:
            names = list(ahead.pop().scope.names.values())
            for name in [value.module if isinstance(value, Imported) else value for value in names]:
                found = self.look_up(name) if isinstance(name, ModuleName) else None
                if isinstance(found, Module) and found.path not in seen:
                    seen.add(found.path)
                    self.start(found)
                    ahead.append(found)

    def file_says(self, path: str, by: str) -> str | None:
        """A file of the program as text: beside the one that names it, or in the folder that it starts in."""
        for place in (str(PurePosixPath(by).parent / path), path):
            data = self.sources.source_of(place)
            if data is not None:
                return data[:MOST_BYTES].decode("utf-8", "replace")
        return None

    def reaches(self, value: Value, memory: dict[int, bool]) -> bool:
        """Whether running a function or making an object may make a parser or read the command line."""
        value = self.look_up(value)
        if not isinstance(value, Function | ClassValue):
            return isinstance(value, Native)
        if id(value.node) not in memory:
            memory[id(value.node)] = False  # for functions that call each other
            memory[id(value.node)] = self._reaches(value, memory)
        return memory[id(value.node)]

    def _reaches(self, value: Function | ClassValue, memory: dict[int, bool]) -> bool:
        if isinstance(value, ClassValue) and any(
            isinstance(base, External) and base.name.rpartition(".")[2] in WORDS for base in self.ancestors(value)
        ):
            return True
        called: list[ast.expr] = []
        for node in ast.walk(value.node):
            self.work.step()
            if (isinstance(node, ast.Name) and node.id in WORDS) or (
                isinstance(node, ast.Attribute) and node.attr in WORDS
            ):
                return True
            if isinstance(node, ast.Call):
                called += [node.func, *(item for item in node.args if isinstance(item, ast.Name))]
            elif isinstance(node, ast.alias) and node.name.rpartition(".")[2] in WORDS:
                return True
        owner = value.owner if isinstance(value, Function) else value
        return any(self.reaches(item, memory) for item in self._called(called, value.scope, owner))

    def _called(self, nodes: list[ast.expr], scope: Scope, owner: ClassValue | None) -> Iterator[Value]:
        for node in nodes:
            if isinstance(node, ast.Name):
                yield self.look_up(self.name(node.id, scope))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in ("self", "cls") and owner is not None:
                    yield self._of_class(owner, node.attr, UNKNOWN)
                else:
                    of = self.look_up(self.name(node.value.id, scope))
                    if isinstance(of, Module | ClassValue):
                        yield self.attribute(of, node.attr)


def _of_program(value: Value) -> bool:
    return value is not UNKNOWN and not isinstance(value, External)


def _bound(value: Value, to: Value) -> Value:
    """A method of what it was asked of. Functions under `staticmethod` are bound to nothing."""
    if not isinstance(value, Function) or value.bound is not None:
        return value
    kinds = {one.name for one in value.decorators if isinstance(one, External)}
    if f"{BUILTIN}staticmethod" in kinds or (isinstance(to, ClassValue) and f"{BUILTIN}classmethod" not in kinds):
        return value
    if f"{BUILTIN}classmethod" in kinds and isinstance(to, Instance):
        to = to.of
    return Function(value.node, value.scope, to, value.owner, value.decorators, value.partial)
