"""All checks that read files and run nothing: one call, one list of faults."""

from collections.abc import MutableMapping

from tools.trust import allow, content, edges, layout, literals, reach
from tools.trust.fault import Fault, unique
from tools.trust.finding import Finding
from tools.trust.names import Names
from tools.trust.source import Module, Repository
from tools.trust.stages import KERNELS, MANIFEST, PACKAGES, Stage

Cache = MutableMapping[tuple[str, str, int], tuple[list[Fault], list[Finding]]]


def check(repository: Repository, allowlist: str | None = None, cache: Cache | None = None) -> list[Fault]:
    """Every fault of the tree. `allowlist` stands in for the tree's own; `cache` keeps what one file's reading found."""
    cache = {} if cache is None else cache
    context = {stage.name: _context(repository, stage) for stage in PACKAGES}
    faults: list[Fault] = [*repository.parsed[1], *layout.check(repository), *content.data_files(repository)]
    findings: list[Finding] = [*layout.findings(repository)]
    for module in repository.modules:
        key = (module.path, repository.text(module.path), context[module.stage.name])
        if key not in cache:
            cache[key] = _read(repository, module)
        faults += cache[key][0]
        findings += cache[key][1]
    text = allowlist if allowlist is not None else repository.text(allow.PATH) if allow.PATH in repository.files else ""
    return unique([*faults, *allow.apply(text, findings, judge_unused=allowlist is None)])


def _read(repository: Repository, module: Module) -> tuple[list[Fault], list[Finding]]:
    names = Names(module)
    faults = list(literals.check(repository, module, names))
    findings = list(reach.findings(repository, module, names))
    for found in (*edges.check(repository, module, names), *content.check(repository, module, names)):
        if isinstance(found, Finding):
            findings.append(found)
        else:
            faults.append(found)
    return faults, findings


def _context(repository: Repository, stage: Stage) -> int:
    """What a file's verdict depends on besides its text."""
    pyproject = f"{stage.folder}pyproject.toml"
    parts = [pyproject] if pyproject in repository.files else []
    if stage is KERNELS:
        parts += [path for path in repository.files if path.startswith(MANIFEST.folder) and path.endswith(".toml")]
    public = sorted(name for name in repository.module_names if name.split(".")[0] == KERNELS.package)
    return hash((*public, *(repository.text(path) for path in parts)))
