"""What LLVM compiles for: an option's text, TVM's description of it, and whether this machine is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.converters.tvm.vendor import tvm
from deploykit.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

# What every processor of a kind has. LLVM's own "generic" is a 64-bit processor of 2003 without SSE3 on x86.
_KNOWN = {"-mcpu": "mcpu", "-mtriple": "mtriple", "-mattr": "mattr"}


def wanted(options: Mapping[str, Any]) -> dict[str, Any]:
    """TVM's target as JSON. Raises UsageError (DK527) for a processor that LLVM does not know.

    Without the option: this system, and any processor of its kind, so that the library runs on other machines, too.
    """
    codegen = tvm.target.codegen
    text = str(options.get("target", "llvm")).strip()
    found: dict[str, Any] = {"kind": "llvm", "mtriple": codegen.llvm_get_system_triple()}
    if text == "host":
        return {**found, "mcpu": codegen.llvm_get_system_cpu()}
    kind, *words = text.split()
    if kind != "llvm":
        raise _bad(text, f"{kind!r} is not llvm, which alone makes code for processors here")
    for word in words:
        name, _, value = word.partition("=")
        if name not in _KNOWN or not value:
            raise _bad(text, f"{word!r} is none of -mcpu=NAME, -mtriple=TRIPLE, -mattr=+FEATURE,...")
        found[_KNOWN[name]] = value.split(",") if name == "-mattr" else value
    cpu = found.get("mcpu")
    if cpu is not None and not codegen.llvm_is_valid_cpu(cpu, found["mtriple"]):
        raise _bad(text, f"LLVM {codegen.llvm_version_major()} knows no processor {cpu!r} of {found['mtriple']}")
    return found


def _bad(text: str, why: str) -> UsageError:
    return UsageError(
        f"option target={text!r}: {why}",
        code="DK527",
        target="tvm",
        hint="--option target=host, or --option 'target=llvm -mcpu=x86-64-v3'",
    )


def features(target: Mapping[str, Any]) -> list[str]:
    """Instruction sets that the code may use, as LLVM calls them."""
    found = map(str, tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(dict(target))))
    return sorted(name for name in found if _is_instruction_set(name))


def refuse_other(built_for: Mapping[str, Any]) -> None:
    """Raises UnavailableError (DK591) for code of another processor than this machine's: it would crash."""
    codegen = tvm.target.codegen
    here = codegen.llvm_get_system_triple()
    own = {"kind": "llvm", "mtriple": here, "mcpu": codegen.llvm_get_system_cpu()}
    triple = str(built_for.get("triple", here))
    lacking: list[str] = []
    if triple.split("-")[0] == here.split("-")[0]:
        lacking = sorted(set(built_for.get("features", ())) - set(features(own)))
        if not lacking:
            return
    what = f"{triple}, which this machine is not ({here})"
    if lacking:
        what = f"{built_for.get('cpu')}: {own['mcpu']} here lacks {', '.join(lacking[:6])}"
    raise UnavailableError(
        f"the library was built for {what}",
        code="DK591",
        target="tvm",
        hint="convert it without --option target, or with one that fits this machine",
    )


def _is_instruction_set(name: str) -> bool:
    """LLVM lists what a processor is fast at among what it has: `fast-lzcnt`, `macrofusion`."""
    if name.startswith(("avx", "amx", "sse")):
        return True
    return "-" not in name and not name.endswith("fusion") and name != "vzeroupper"
