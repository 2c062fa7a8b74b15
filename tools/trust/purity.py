"""Import purity: `import tops_kernels` changes nothing that belongs to others. Compared before and after, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tools.trust.fault import Fault
from tools.trust.stages import PACKAGES

_PROBE = """\
import json, os, sys
import numpy, jax, jax.numpy

def state():
    owners = {"jax": jax, "jax.numpy": jax.numpy, "numpy": numpy, "builtins": __import__("builtins"), "jax.Array": jax.Array}
    found = {f"{name}.{key}": id(value) for name, owner in owners.items() for key, value in vars(owner).items()}
    found |= {f"jax.config.{key}": repr(value) for key, value in jax.config.values.items()}
    found |= {f"os.environ.{key}": value for key, value in os.environ.items()}
    found |= {name: [repr(one) for one in getattr(sys, name)] for name in ("meta_path", "path_hooks", "path", "argv")}
    found |= {"numpy.printoptions": repr(numpy.get_printoptions()), "numpy.errors": repr(numpy.geterr()), "excepthook": id(sys.excepthook)}
    found |= {"jax backends": sorted(__import__("jax._src.xla_bridge")._src.xla_bridge._backends)}
    return found

before = state()
import tops_kernels
after = state()
changed = (key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
# A submodule that was imported for the first time is an attribute of its parent from then on.
print(json.dumps(sorted(key for key in changed if key in before or id(sys.modules.get(key)) != after[key])))
"""


def check(root: Path) -> list[Fault]:
    """A fault for each thing that importing the tree's tops_kernels changes."""
    path = os.pathsep.join(str(root / stage.folder / "src") for stage in PACKAGES)
    ran = subprocess.run(
        [sys.executable, "-c", _PROBE],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    where, do = (
        "packages/tops-kernels/src/tops_kernels/__init__.py",
        "Do it in the function that needs it, for that call alone.",
    )
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or ["no message"]
        return [
            Fault(
                where,
                0,
                "import-purity",
                f"import tops_kernels fails: {last[0]}",
                "Run it by hand and mend the import.",
            )
        ]
    return [
        Fault(where, 0, "import-purity", f"importing tops_kernels changes {key}", do) for key in json.loads(ran.stdout)
    ]
