"""The models of a repository in memory: found, loaded, exchanged for new versions, and unloaded, while requests run."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING

from deploykit.errors import DeploykitError
from deploykit.serving.errors import ForbiddenError, LoadError, UnknownModelError
from deploykit.serving.lanes import apart
from deploykit.serving.logs import LOGGER
from deploykit.serving.repository import Entry, entries_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploykit.serving.dataplane import DataPlane
    from deploykit.serving.model import Model

Key = tuple[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """A row of the repository's index. state: READY, LOADING or UNAVAILABLE, as Triton has it; reason: of the last."""

    name: str
    version: str
    state: str
    reason: str = ""


class Catalog:
    """What is on disk beside what is loaded. Use from one event loop; loading happens on threads."""

    def __init__(
        self,
        plane: DataPlane,
        folder: Path,
        make: Callable[[Entry], Model],
        *,
        control: bool,
        name: str | None = None,
    ) -> None:
        """make: a model of an entry, not loaded. control: whether clients may load and unload.

        name: what the folder's only model is called instead of as its folder.
        """
        self._plane = plane
        self._folder = folder
        self._name = name
        self._make = make
        self.control = control
        self._loaded: dict[Key, Entry] = {}
        self._seen: dict[Key, Entry] = {}
        self._problems: dict[Key, tuple[Entry, str]] = {}
        self._unloaded: set[str] = set()
        self._one_at_a_time = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()
        self._told: dict[str, str] = {}
        self._log = logging.getLogger(LOGGER)

    def adopt(self, entry: Entry) -> None:
        """Notes an entry whose model the plane has already."""
        self._loaded[entry.name, entry.version] = entry

    async def watch(self, seconds: float) -> None:
        """Looks at the folder over and over, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.refresh()
            except DeploykitError as problem:  # the folder is gone, or unreadable: what is loaded stays
                self._tell({"": problem.message})
            except Exception:  # whatever it was, the next look may go well, and a watch that ended would not be seen
                self._log.exception("repository", extra={"fields": {}})

    async def refresh(self) -> None:
        """Loads what is new or has changed, once it has stopped changing, and unloads what is gone.

        What fails to load stays as it was before: an older version, or older files of the same one, go on answering.
        Raises InvalidFileError when the folder cannot be read.
        """
        async with self._one_at_a_time:
            broken: dict[str, str] = {}
            found = {(e.name, e.version): e for e in await asyncio.to_thread(self._entries, broken)}
            self._tell(broken)
            for key, entry in found.items():
                if key[0] in self._unloaded or self._loaded.get(key) == entry:
                    continue
                settled, self._seen[key] = self._seen.get(key) == entry, entry
                if settled and self._problems.get(key, (None, ""))[0] != entry:
                    await self._load(key, entry)
            for key in [key for key in self._loaded if key not in found and key[0] not in broken]:
                replaced = any(other in self._loaded for other in found if other[0] == key[0])
                if replaced or not any(other[0] == key[0] for other in found):
                    self._unload(key)

    async def load(self, name: str) -> None:
        """Loads the versions of a model that its configuration chooses, those that are loaded anew.

        Raises ForbiddenError without `control`, UnknownModelError for a model that the folder has not, LoadError; what
        was loaded before stays then.
        """
        self._require_control()
        async with self._one_at_a_time:
            broken: dict[str, str] = {}
            chosen = [entry for entry in await self._read(broken) if entry.name == name]
            if name in broken:
                raise LoadError(f"model {name!r} cannot be loaded: {broken[name]}")
            if not chosen:
                raise UnknownModelError(f"the repository has no model {name[:80]!r}")
            self._unloaded.discard(name)
            for entry in chosen:
                await self._load((entry.name, entry.version), entry)
                if (problem := self._problems.get((entry.name, entry.version))) is not None:
                    raise LoadError(f"model {name!r} version {entry.version} cannot be loaded: {problem[1]}")
            wanted = {(entry.name, entry.version) for entry in chosen}
            for key in [key for key in self._loaded if key[0] == name and key not in wanted]:
                self._unload(key)

    async def unload(self, name: str) -> None:
        """Takes a model out, once its requests are answered; it stays out until it is loaded on request.

        Raises ForbiddenError without `control`, UnknownModelError for a model that is not loaded.
        """
        self._require_control()
        async with self._one_at_a_time:
            keys = [key for key in self._loaded if key[0] == name]
            if not keys:
                raise UnknownModelError(f"model {name[:80]!r} is not loaded")
            self._unloaded.add(name)
            for key in keys:
                self._unload(key)

    async def index(self, *, ready: bool) -> list[Listed]:
        """Every version on disk or in memory; with `ready` those that answer.

        Raises ForbiddenError without `control`.
        """
        self._require_control()
        found = {(e.name, e.version): e for e in await self._read({}, every=True)}
        rows = []
        for key in sorted({*found, *self._loaded}):
            model = self._plane.find(*key)
            if model is not None and self._plane.is_ready(model):
                rows.append(Listed(*key, "READY"))
            elif not ready:
                reason = self._problems[key][1] if key in self._problems else "unloaded"
                rows.append(Listed(*key, "LOADING" if model is not None else "UNAVAILABLE", "" if model else reason))
        return rows

    async def _read(self, broken: dict[str, str], *, every: bool = False) -> list[Entry]:
        """`_entries` for a client, who gets a LoadError when the folder cannot be read."""
        try:
            return await asyncio.to_thread(self._entries, broken, every=every)
        except DeploykitError as problem:
            raise LoadError(f"the repository cannot be read: {problem.message}") from problem

    def _entries(self, broken: dict[str, str], *, every: bool = False) -> list[Entry]:
        found = entries_of(self._folder, every=every, broken=broken)
        if self._name is None:
            return found
        for folder in list(broken):
            broken[self._name] = broken.pop(folder)
        return [dataclasses.replace(entry, name=self._name) for entry in found]

    def _tell(self, problems: dict[str, str]) -> None:
        """Logs what is wrong with models, or with the folder (""), once and not with every look."""
        for name, problem in problems.items():
            if self._told.get(name) != problem:
                fields = {"problem": problem, **({"model": name} if name else {})}
                self._log.error("repository", extra={"fields": fields})
        self._told = problems

    def _require_control(self) -> None:
        if not self.control:
            raise ForbiddenError(
                "this server does not let clients look into or change its repository",
                hint="start it with --repository-control",
            )

    async def _load(self, key: Key, entry: Entry) -> None:
        model = self._make(entry)
        fields = {"model": entry.name, "version": entry.version}
        try:
            await apart(model.load, name="load")
        except asyncio.CancelledError:  # the server stops, or the client that asked has left
            model.close()
            raise
        except Exception as problem:  # vendors' own classes, too: the older version goes on whatever it is
            why = problem.message if isinstance(problem, DeploykitError) else f"{type(problem).__name__}: {problem}"
            self._problems[key] = (entry, why)
            self._log.error("not loaded", extra={"fields": {**fields, "why": why}})
            return
        self._problems.pop(key, None)
        before = self._plane.find(*key)
        self._plane.put(model)
        self._loaded[key] = entry
        self._log.info("loaded", extra={"fields": {**fields, "engine": model.engine, "replaced": before is not None}})
        if before is not None:
            self._leave(before)

    def _unload(self, key: Key) -> None:
        del self._loaded[key]
        model = self._plane.take(*key)
        self._log.info("unloaded", extra={"fields": {"model": key[0], "version": key[1]}})
        if model is not None:
            self._leave(model)

    def _leave(self, model: Model) -> None:
        """Closes a model that gets no new requests, after those that it has."""
        task = asyncio.get_running_loop().create_task(model.drain())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


def catalog_of(plane: DataPlane) -> Catalog:
    """The repository behind a plane. Raises ForbiddenError where there is none: a single artifact is served."""
    if plane.catalog is None:
        raise ForbiddenError("this server has a single artifact and no repository", hint="serve a repository's folder")
    return plane.catalog
