"""YAML with places: plain values, and for every key the line and column where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from deploykit.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

Location = tuple[str | int, ...]
MAX_BYTES = 1 << 20  # a configuration is a page, not a data set
MAX_VALUES = 20_000  # aliases of aliases make billions of values out of a few lines


class LocatedYaml:
    """A parsed YAML file. `value`: plain dicts, lists and scalars. `place(location)`: "file:line:column"."""

    def __init__(self, path: Path) -> None:
        """Parses the file; ConfigError (DK811) with line and column for a syntax error or a key given twice."""
        self.path = path
        self._marks: dict[Location, tuple[int, int]] = {}
        self._values = 0
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_BYTES} bytes: not a configuration", code="DK811", file=path)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as problem:
            raise ConfigError(f"{path} is not UTF-8 text: {problem.reason}", code="DK811", file=path) from problem
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            self.value: Any = None if root is None else self._convert(root, (), set())
        except yaml.MarkedYAMLError as problem:
            mark = problem.problem_mark or problem.context_mark
            where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
            raise ConfigError(f"{where}: this is not YAML: {problem.problem}", code="DK811", file=path) from problem
        except yaml.YAMLError as problem:
            raise ConfigError(f"{path} is not YAML: {problem}", code="DK811", file=path) from problem
        except RecursionError as problem:
            raise ConfigError(f"{path} is nested too deeply: not a configuration", code="DK811", file=path) from problem

    def _convert(self, node: yaml.Node, location: Location, open_nodes: set[int]) -> Any:
        self._marks.setdefault(location, (node.start_mark.line + 1, node.start_mark.column + 1))
        self._values += 1
        if self._values > MAX_VALUES:
            raise ConfigError(
                f"{self.place(location)}: the file stands for more than {MAX_VALUES} values: not a configuration",
                code="DK811",
                file=self.path,
            )
        if id(node) in open_nodes:
            raise ConfigError(f"{self.place(location)}: an alias contains itself", code="DK811", file=self.path)
        inner = open_nodes | {id(node)}
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, location, inner)
        if isinstance(node, yaml.SequenceNode):
            return [self._convert(item, (*location, index), inner) for index, item in enumerate(node.value)]
        return _scalar(node)

    def _mapping(self, node: yaml.MappingNode, location: Location, open_nodes: set[int]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            here = (*location, key)
            if key in result:
                line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
                raise ConfigError(
                    f"{self.path}:{line}:{column}: the key {key!r} stands here a second time",
                    code="DK811",
                    file=self.path,
                    hint="keep one of the two",
                )
            self._marks[here] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            result[key] = self._convert(value_node, here, open_nodes)
        return result

    def place(self, location: Location) -> str:
        """`file:line:column` of the key, or of the nearest enclosing one that stands in the file."""
        while location and location not in self._marks:
            location = location[:-1]
        line, column = self._marks.get(location, (1, 1))
        return f"{self.path}:{line}:{column}"


def _scalar(node: yaml.Node) -> Any:
    # SafeLoader resolves int, float, bool, null and dates as YAML 1.1 says; nothing here can build other objects.
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    finally:
        loader.dispose()
