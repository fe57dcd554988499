"""Saved programs: a second start takes the choices of the first instead of searching again.

An artifact is one JSON file beside the libraries that its kernels are in. It is keyed by everything that decides what a
program computes (graph, options, op versions, machine), holds checksums, and is rebuilt when anything does not fit.
"""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from engine.compiler.extract import CyclicChoice, Extractor
from engine.compiler.graph import Graph, Node
from engine.compiler.options import CompileOptions
from engine.compiler.program import CompiledPrograms, Phase, Program
from engine.compiler.search import combinations
from engine.compiler.space import SearchSpace
from engine.ops.registry import version

log = logging.getLogger(__name__)
_FORMAT = 1


class ArtifactError(ValueError):
    """A saved artifact does not fit what it is asked for."""


def key_of(graph: Graph, options: CompileOptions, device: str) -> str:
    """Hash of all that decides the programs."""
    digest = sha256()
    settings = {
        f.name: getattr(options, f.name) for f in fields(options) if f.name != "profile_dims"
    }
    timed_at = [options.dims_at(bucket) for bucket in combinations(options)]
    for part in (_FORMAT, version(), device, settings, timed_at):
        digest.update(repr(part).encode())
    for node in graph.nodes:
        digest.update(_describe(node, graph).encode())
    return digest.hexdigest()[:32]


def _describe(node: Node, graph: Graph) -> str:
    reads = [(o.node.id, o.view) for o in node.inputs]
    kept = (node in graph.persisted, node in graph.updates and graph.updates[node].node.id)
    return f"{node.op} {node.attrs} {reads} {node.shape} {node.dtype} {kept}"


def save(
    path: Path, key: str, programs: CompiledPrograms, libraries: Sequence[Path], details: Any
) -> None:
    """Write an artifact in one step, so that a reader sees all of it or none. `details` is kept for reports."""
    body = {
        "key": key,
        "libraries": {p.name: sha256(p.read_bytes()).hexdigest() for p in libraries},
        "programs": [[_choices(phase) for phase in p.phases] for p in programs.programs],
        "details": details,
    }
    text = json.dumps(body)
    document = {"sha256": sha256(text.encode()).hexdigest(), "body": text}
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        json.dump(document, file)
    os.replace(file.name, path)


def load(
    path: Path, key: str, space: SearchSpace, options: CompileOptions
) -> tuple[CompiledPrograms, list[Path], Any]:
    """(programs, libraries, details). Raises `ArtifactError` where the file is damaged or of something else, and
    `FileNotFoundError` where there is none."""
    text = path.read_text(errors="replace")
    try:
        document = json.loads(text)
        body_text = document["body"]
        if sha256(body_text.encode()).hexdigest() != document["sha256"]:
            raise ArtifactError("its checksum is wrong")
        body = json.loads(body_text)
        if body["key"] != key:
            raise ArtifactError("it was made for something else")
        libraries = [path.parent / name for name in body["libraries"]]
        for library in libraries:
            if sha256(library.read_bytes()).hexdigest() != body["libraries"][library.name]:
                raise ArtifactError(f"library {library.name} has changed")
        programs = _rebuild(body["programs"], space, options)
    except ArtifactError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, OSError, CyclicChoice) as error:
        raise ArtifactError(f"it cannot be read: {error}") from error
    return programs, libraries, body["details"]


def _choices(phase: Phase) -> dict[str, Any]:
    return {"genome": phase.genome, "check": _fingerprint(phase)}


def _fingerprint(phase: Phase) -> str:
    return sha256("\n".join(i.key for i in phase.instructions).encode()).hexdigest()[:16]


def _rebuild(
    saved: list[list[dict[str, Any]]], space: SearchSpace, options: CompileOptions
) -> CompiledPrograms:
    extractors = [Extractor(region) for region in space.regions]
    programs = []
    for bucket, choices in zip(combinations(options), saved, strict=True):
        phases = []
        for extractor, choice in zip(extractors, choices, strict=True):
            genome = tuple(int(i) for i in choice["genome"])
            phase = Phase(extractor.space, genome, tuple(extractor.instructions(genome)))
            if _fingerprint(phase) != choice["check"]:
                raise ArtifactError("its choices mean another program here")
            phases.append(phase)
        programs.append(Program(bucket, options.dims_at(bucket), tuple(phases)))
    return CompiledPrograms(tuple(programs))
