#!/usr/bin/env bash
# Unit tests on CPU, by the README's own command.
source "$(dirname "$0")/lib.sh"
light_codegen
command="$(readme_command tests)"
echo "+ $command" >&2
bash -euo pipefail -c "$command"
