"""Plants changes of the code in memory, when it is imported: no file is touched, and bytecode of the rest is used."""

from __future__ import annotations

import ast
import io
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any
from unittest import mock

from tests.privacy.bugs.bug import Change

ROOT = Path(__file__).parents[3]

Nodes = list[ast.AST]
"""An expression, alone, or a run of statements."""


def changed(changes: Sequence[Change]) -> dict[str, ast.Module | str]:
    """The syntax tree of each changed module, and the text of each changed file that is not Python.

    Raises:
        LookupError: an old text is not there, or not once.
    """
    found: dict[str, ast.Module | str] = {}
    for change in changes:
        name, _, inside = change.place.partition(":")
        if (ROOT / name).is_file():
            found[name] = _changed_text(str(found.get(name) or (ROOT / name).read_text()), change)
        else:
            tree = found[name] if name in found else ast.parse(source_of(name).read_text())
            assert isinstance(tree, ast.Module)
            _change_tree(tree, inside, change)
            found[name] = tree
    return found


def lines_of(change: Change) -> tuple[str, range]:
    """The file of a change, and the lines of the old code in it; none in a file that is not Python."""
    name, _, inside = change.place.partition(":")
    if (ROOT / name).is_file():
        return name, range(0)
    file = source_of(name)
    (parent, field, first, _), old, _ = _spot(ast.parse(file.read_text()), inside, change)
    held = getattr(parent, field)
    nodes = [held] if first is None else held[first : None if _goes_on(old) else first + len(old)]
    return str(file.relative_to(ROOT)), range(nodes[0].lineno, nodes[-1].end_lineno + 1)


def is_in_function(change: Change) -> bool:
    """Return whether a change is in a function's body, so that all that is decided at import stays as it is."""
    name, _, inside = change.place.partition(":")
    if (ROOT / name).is_file():
        return False
    tree = ast.parse(source_of(name).read_text())
    (parent, field, _, _), _, _ = _spot(tree, inside, change)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    bodies = (node for function in functions for statement in function.body for node in ast.walk(statement))
    return any(parent is node for node in bodies) or (field == "body" and any(parent is each for each in functions))


def source_of(module: str) -> Path:
    """The file of a module of this project, which is not imported for it."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def plant(code: Mapping[str, ast.Module | str]) -> None:
    """Let this process run changed code.

    Args:
        code: tree or source of modules by their names, and texts of other files by their paths in the project.

    Raises:
        RuntimeError: one of the modules runs already, unchanged.
    """
    late = sorted(code.keys() & sys.modules.keys())
    if late:
        raise RuntimeError(f"{', '.join(late)} was imported before its bug was planted; plant in a new process.")
    texts = {ROOT / name: text for name, text in code.items() if (ROOT / name).is_file()}
    if texts:
        mock.patch.object(io, "open", _opening(texts)).start()  # pathlib's
    sys.meta_path.insert(0, _Finder(code))  # type: ignore[arg-type]


class _Finder:
    """Imports changed modules in the place of those on the disk."""

    def __init__(self, code: Mapping[str, ast.Module | str]) -> None:
        self._code = code

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> Any:
        """The spec of a module that is changed; None of any other."""
        if name not in self._code:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None and spec.origin is not None
        spec.loader = _Loader(name, spec.origin, self._code[name])
        return spec


class _Loader(SourceFileLoader):
    """Compiles a given tree, whatever the file and its bytecode say."""

    def __init__(self, name: str, path: str, code: ast.Module | str) -> None:
        super().__init__(name, path)
        self._changed = code

    def get_code(self, fullname: str) -> Any:
        return compile(self._changed, self.path, "exec", dont_inherit=True)


def _opening(texts: Mapping[Path, ast.Module | str]) -> Any:
    """`open` as it is, but for reading some files."""
    as_it_is = io.open

    def opened(file: Any, *arguments: Any, **named: Any) -> Any:
        text = texts.get(Path(file)) if isinstance(file, str | Path) else None
        return as_it_is(file, *arguments, **named) if text is None else io.StringIO(str(text))

    return opened


def _changed_text(text: str, change: Change) -> str:
    _check_once(text.count(change.old), change)
    return text.replace(change.old, change.new)


def _check_once(times: int, change: Change) -> None:
    if times != 1:
        raise LookupError(
            f"{change.place} holds this {times} times, not once:\n\n{textwrap.indent(change.old, '    ')}\n\n"
            "The code has moved on. Look for what does the same today, and give the bug its place and its words; a bug "
            "whose meaning is gone loses its entry."
        )


# In the syntax tree

Spot = tuple[ast.AST, str, int | None, list[Nodes]]
"""A node and its field that hold old code, the number in the field's list, and what each `...` stands for there."""

DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _change_tree(tree: ast.Module, inside: str, change: Change) -> None:
    (parent, field, first, rests), old, new = _spot(tree, inside, change)
    held = getattr(parent, field)
    for node in (each for one in new for each in ast.walk(one)):
        ast.copy_location(node, held if first is None else held[first])
    new = _with_rests(new, iter(rests))
    if first is None:
        setattr(parent, field, new[0])
    else:
        held[first : None if _goes_on(old) else first + len(old)] = new


def _spot(tree: ast.Module, inside: str, change: Change) -> tuple[Spot, Nodes, Nodes]:
    """Find the one place of the old code; with the old and the new one."""
    old, new = _parsed(change.old), _parsed(change.new)
    if len(old) == len(new) == 1 and isinstance(old[0], ast.Expr) and isinstance(new[0], ast.Expr):
        old, new = [old[0].value], [new[0].value]  # an expression, which may be a part of a statement
    spots = [spot for scope in _named(tree, inside.split(".") if inside else []) for spot in _spots(scope, old)]
    _check_once(len(spots), change)
    return spots[0], old, new


def _parsed(text: str) -> Nodes:
    return list(ast.parse(textwrap.dedent(text)).body)


def _named(scope: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """Functions and classes of a qualified name; a property and its setter share one."""
    if not names:
        yield scope
        return
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, DEFINITIONS):
            yield from _named(child, names)
        elif child.name == names[0]:
            yield from _named(child, names[1:])


def _spots(scope: ast.AST, old: Nodes) -> Iterator[Spot]:
    for parent in ast.walk(scope):
        for field, held in ast.iter_fields(parent):
            for first, nodes in enumerate(_runs(held, old)) if isinstance(held, list) else [(None, [held])]:
                rests: list[Nodes] = []
                if _same(nodes, old, rests):
                    yield parent, field, first, rests


def _runs(held: Nodes, old: Nodes) -> Iterator[Nodes]:
    return (held[first : None if _goes_on(old) else first + len(old)] for first in range(len(held)))


def _same(found: Any, old: Any, rests: list[Nodes]) -> bool:
    """Compare trees, not lines; note the rest of each block that ends with `...`."""
    if type(found) is not type(old):
        return False
    if isinstance(old, ast.AST):
        return all(_same(getattr(found, name), getattr(old, name), rests) for name in old._fields)
    if not isinstance(old, list):
        return bool(found == old)
    named = len(old) - _goes_on(old)
    if len(found) < named or (len(found) > named and not _goes_on(old)):
        return False
    same = all(_same(one, other, rests) for one, other in zip(found, old[:named], strict=False))
    if _goes_on(old):
        rests.append(found[named:])
    return same


def _goes_on(block: list[Any]) -> bool:
    return bool(block) and _is_dots(block[-1])


def _is_dots(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...


def _with_rests(block: Nodes, rests: Iterator[Nodes]) -> Nodes:
    whole: Nodes = []
    for node in block:
        if _is_dots(node):
            whole += next(rests)
            continue
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, _with_rests(value, rests))
        whole.append(node)
    return whole
